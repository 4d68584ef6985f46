// y = x / sqrt(mean(x²) + EPS) * weight, and its int8 copy. One workgroup per row; eight neighbouring threads share a
// group of 32, each with one quad, mostly the only one it has. The padding is zero.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> codes: array<u32>;
@group(0) @binding(5) var<storage, read_write> scales: array<vec2<f32>>;

const QUADS: u32 = X_STRIDE / 4u;
const TURNS: u32 = (QUADS + WORKGROUP - 1u) / WORKGROUP;

// Norms and packs one quad.
fn finish(ids: Ids, row: u32, quad: u32, value: vec4<f32>, live: bool) {
    let size = abs(value);
    let top = octet_max(ids, max(max(size.x, size.y), max(size.z, size.w)));
    let inverse = select(0.0, 127.0 / top, top > 0.0);
    let packed = vec4<i32>(round(value * inverse));
    let sum = octet_sum(ids, packed.x + packed.y + packed.z + packed.w);
    if live && quad < QUADS {
        y[row * QUADS + quad] = value;
        codes[row * QUADS + quad] = pack4xI8(packed);
        if quad % 8u == 0u { scales[(row * QUADS + quad) / 8u] = vec2(top / 127.0, top / 127.0 * f32(sum)); }
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups);
    let live = row < step_rows();
    let base = min(row, step_rows() - 1u) * QUADS;
    let thread = thread_index(ids);
    let first = x[base + min(thread, QUADS - 1u)];
    let first_weight = weight[min(thread, QUADS - 1u)];
    var part = select(0.0, dot(first, first), thread < QUADS);
    for (var i = thread + WORKGROUP; i < QUADS; i += WORKGROUP) { part += dot(x[base + i], x[base + i]); }
    let factor = 1.0 / sqrt(group_sum(ids, part) / f32(WIDTH) + EPS);
    finish(ids, row, thread, select(vec4(0.0), first * factor * first_weight, thread < QUADS), live);
    for (var turn = 1u; turn < TURNS; turn++) {
        let quad = turn * WORKGROUP + thread;
        let at = min(quad, QUADS - 1u);
        finish(ids, row, quad, select(vec4(0.0), x[base + at] * factor * weight[at], quad < QUADS), live);
    }
}
