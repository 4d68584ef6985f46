// Puts the splits of attention_split.wgsl together: one head (x) of one row (y). Reads each split's sums once.
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> parts: array<vec4<f32>>;

const QUADS: u32 = HEAD_DIM / 4u;

// Where a split's sums start.
fn part_at(split: u32, row: u32, head: u32) -> u32 {
    return ((split * step_rows() + row) * HEADS + head) * (QUADS + 1u);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let head = ids.group.x;
    let row = ids.group.y;
    let splits = u32(parts[part_at(0u, row, head) + QUADS].z);
    var top = -3.0e38;
    for (var s = 0u; s < splits; s++) { top = max(top, parts[part_at(s, row, head) + QUADS].x); }
    for (var d = ids.local; d < QUADS; d += WORKGROUP) {
        var whole = vec4(0.0);
        var total = 0.0;
        for (var s = 0u; s < splits; s++) {
            let at = part_at(s, row, head);
            let tail = parts[at + QUADS];
            let factor = exp(tail.x - top);
            whole += parts[at + d] * factor;
            total += tail.y * factor;
        }
        let at = row * (OUT_STRIDE / 4u) + head * QUADS + d;
        out[at] = whole / total * gate4(at) * mask_of(head);
    }
}
