// y = x / sqrt(mean(x²) + EPS) * weight, and its int8 copy. One workgroup per row; eight neighbouring threads share a
// group of 32, each with one quad, mostly the only one it has. The padding is zero. Second codes are PACKED_REST groups
// after the first ones.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> codes: array<u32>;
@group(0) @binding(5) var<storage, read_write> scales: array<vec2<f32>>;

const QUADS: u32 = X_STRIDE / 4u;
const TURNS: u32 = (QUADS + WORKGROUP - 1u) / WORKGROUP;

fn put_packed(at: u32, packed: Octet) {
    codes[at] = packed.word;
    if at % 8u == 0u { scales[at / 8u] = packed.scale; }
}

// Writes and packs one quad.
fn finish(ids: Ids, row: u32, quad: u32, value: vec4<f32>, live: bool) {
    let at = row * QUADS + quad;
    let inside = live && quad < QUADS;
    let packed = pack_octet(ids, value, octet_top(ids, value));
    if inside {
        y[at] = value;
        put_packed(at, packed);
    }
    if CODES > 1u {
        let rest = pack_rest(ids, packed);
        if inside { put_packed(at + 8u * PACKED_REST, rest); }
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
