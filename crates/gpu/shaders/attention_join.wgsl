// Puts the splits of attention_split.wgsl together: one head (x) of one row (y). Reads each split's sums once.
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> parts: array<vec4<f32>>;

const QUADS: u32 = HEAD_DIM / 4u;

// Where a split's sums start.
fn part_at(split: u32, row: u32, head: u32) -> u32 {
    return ((split * step_rows() + row) * HEADS + head) * (QUADS + 1u);
}

// Maximum, total and number of splits.
fn tail_of(split: u32, row: u32, head: u32) -> vec4<f32> { return parts[part_at(split, row, head) + QUADS]; }

struct Sums { whole: vec4<f32>, total: f32 }

// What a split adds to a quad of the output; nothing beyond the last one.
fn sums_of(split: u32, last: u32, row: u32, head: u32, quad: u32, top: f32) -> Sums {
    let safe = min(split, last);
    let tail = tail_of(safe, row, head);
    let whole = parts[part_at(safe, row, head) + quad];
    let factor = select(0.0, exp(tail.x - top), split <= last);
    return Sums(whole * factor, tail.y * factor);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let head = ids.group.x;
    let row = ids.group.y;
    let splits = u32(parts[part_at(0u, row, head) + QUADS].z);
    let last = splits - 1u;
    var top = -3.0e38;
    // Four splits are read at a time; beyond the end the last one again, which counts nothing then.
    for (var s = 0u; s < splits; s += 4u) {
        let a = tail_of(s, row, head).x;
        let b = tail_of(min(s + 1u, last), row, head).x;
        let c = tail_of(min(s + 2u, last), row, head).x;
        let d = tail_of(min(s + 3u, last), row, head).x;
        top = max(max(top, max(a, b)), max(c, d));
    }
    for (var d = ids.local; d < QUADS; d += WORKGROUP) {
        var sums = Sums(vec4(0.0), 0.0);
        for (var s = 0u; s < splits; s += 4u) {
            let a = sums_of(s, last, row, head, d, top);
            let b = sums_of(s + 1u, last, row, head, d, top);
            let c = sums_of(s + 2u, last, row, head, d, top);
            let e = sums_of(s + 3u, last, row, head, d, top);
            sums.whole += a.whole + b.whole + c.whole + e.whole;
            sums.total += a.total + b.total + c.total + e.total;
        }
        let at = row * (OUT_STRIDE / 4u) + head * QUADS + d;
        out[at] = sums.whole / sums.total * gate4(at) * mask_of(head);
    }
}
