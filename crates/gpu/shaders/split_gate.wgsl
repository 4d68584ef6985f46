// [query | gate] per head -> queries and gates. Grid: columns along x, rows along y.
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> q: array<f32>;
@group(0) @binding(3) var<storage, read_write> gate: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let i = ids.group.x * WORKGROUP + ids.local;
    if i >= WIDTH { return; }
    let row = ids.group.y;
    let base = row * X_STRIDE + (i / HEAD_DIM) * 2u * HEAD_DIM + i % HEAD_DIM;
    q[row * OUT_STRIDE + i] = x[base];
    gate[row * OUT_STRIDE + i] = x[base + HEAD_DIM];
}
