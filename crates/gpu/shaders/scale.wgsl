// x *= FACTOR. Grid: columns along x, rows along y.
@group(0) @binding(1) var<storage, read_write> x: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let i = ids.group.x * WORKGROUP + ids.local;
    if i < STRIDE { x[ids.group.y * STRIDE + i] *= FACTOR; }
}
