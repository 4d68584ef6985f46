// y = x / sqrt(mean(x²) + EPS) * weight. One workgroup per row; the padding is zero.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;

const QUADS: u32 = X_STRIDE / 4u;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups);
    let base = min(row, step_rows() - 1u) * QUADS;
    // Nearly always the only quad of the thread.
    let first = x[base + min(ids.local, QUADS - 1u)];
    let first_weight = weight[min(ids.local, QUADS - 1u)];
    var part = select(0.0, dot(first, first), ids.local < QUADS);
    for (var i = ids.local + WORKGROUP; i < QUADS; i += WORKGROUP) { part += dot(x[base + i], x[base + i]); }
    let factor = 1.0 / sqrt(group_sum(ids, part) / f32(WIDTH) + EPS);
    if row >= step_rows() || ids.local >= QUADS { return; }
    y[base + ids.local] = first * factor * first_weight;
    for (var i = ids.local + WORKGROUP; i < QUADS; i += WORKGROUP) { y[base + i] = x[base + i] * factor * weight[i]; }
}
