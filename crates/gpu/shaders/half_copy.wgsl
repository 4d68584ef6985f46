// f16 copy of an activation, limited to what f16 holds. Grid: WORKGROUP quads along x, tokens along y.
// Reads 4 bytes and writes 2 per value.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> y: array<vec4<f16>>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let i = ids.group.x * WORKGROUP + ids.local;
    if i >= QUADS { return; }
    let at = ids.group.y * QUADS + i;
    y[at] = vec4<f16>(clamp(x[at], vec4(-65504.0), vec4(65504.0)));
}
