// out = [a | b]. Grid: columns along x, rows along y.
@group(0) @binding(1) var<storage, read> a: array<f32>;
@group(0) @binding(2) var<storage, read> b: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let i = ids.group.x * WORKGROUP + ids.local;
    let row = ids.group.y;
    if i < FIRST {
        out[row * OUT_STRIDE + i] = a[row * FIRST_STRIDE + i];
    } else if i < FIRST + SECOND {
        out[row * OUT_STRIDE + i] = b[row * SECOND_STRIDE + i - FIRST];
    }
}
