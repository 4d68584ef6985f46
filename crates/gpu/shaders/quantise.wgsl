// int8 copies of x, one per copy of column factors. Grid: groups of 32 along x, rows along y, sets along z. Second codes,
// which code what the first ones leave, stand SET_ROWS rows after them.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> codes: array<vec4<u32>>;
@group(0) @binding(3) var<storage, read_write> scales: array<vec2<f32>>;

fn put_packed(at: u32, packed: Packed) {
    codes[2u * at] = packed.low;
    codes[2u * at + 1u] = packed.high;
    scales[at] = packed.scale;
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let g = ids.group.x * WORKGROUP + ids.local;
    let row = ids.group.y;
    let copy = ids.group.z;
    if g >= GROUPS { return; }
    var values: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) { values[i] = x[(row * GROUPS + g) * 8u + i] * field4(copy, 8u * g + i); }
    let packed = pack_int8(values, top_of(values));
    let at = (copy * CODES * SET_ROWS + row) * GROUPS + g;
    put_packed(at, packed);
    if CODES > 1u { put_packed(at + SET_ROWS * GROUPS, pack_int8(packed.rest, 0.5 * packed.scale.x)); }
}
