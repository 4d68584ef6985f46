// y = x / sqrt(mean(x²) + EPS) * weight. One workgroup per row.
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read> weight: array<f32>;
@group(0) @binding(3) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups);
    let base = min(row, step_rows() - 1u) * X_STRIDE;
    var part = 0.0;
    for (var i = ids.local; i < WIDTH; i += WORKGROUP) { part += x[base + i] * x[base + i]; }
    let factor = 1.0 / sqrt(group_sum(ids, part) / f32(WIDTH) + EPS);
    if row < step_rows() {
        for (var i = ids.local; i < WIDTH; i += WORKGROUP) {
            y[row * Y_STRIDE + i] = x[base + i] * factor * weight[i];
        }
    }
}
