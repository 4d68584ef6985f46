// x = x / sqrt(mean(x²) + EPS) * weight. One workgroup per row (y).
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let base = ids.group.y * STRIDE;
    var part = 0.0;
    for (var i = ids.local; i < WIDTH; i += WORKGROUP) { part += x[base + i] * x[base + i]; }
    let factor = 1.0 / sqrt(group_sum(ids, part) / f32(WIDTH) + EPS);
    for (var i = ids.local; i < WIDTH; i += WORKGROUP) { x[base + i] *= factor * weight[i]; }
}
