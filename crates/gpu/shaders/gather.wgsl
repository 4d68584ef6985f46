// y[i] = x[logit row i]. Grid: columns along x, logit rows along y.
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let i = ids.group.x * WORKGROUP + ids.local;
    if i < STRIDE { y[ids.group.y * STRIDE + i] = x[logit_row(ids.group.y) * STRIDE + i]; }
}
