// gate = act(gate) * up * mask. Grid: columns along x, rows along y.
@group(0) @binding(1) var<storage, read_write> gate: array<f32>;
@group(0) @binding(2) var<storage, read> up: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let i = ids.group.x * WORKGROUP + ids.local;
    if i >= WIDTH { return; }
    let at = ids.group.y * STRIDE + i;
    gate[at] = activate(gate[at]) * up[at] * mask_of(i);
}
