// Puts the splits of attention_split.wgsl together: one head (x) of one row (y). Reads each split's sums once.
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read> parts: array<vec4<f32>>;

const QUADS: u32 = HEAD_DIM / 4u;
// Threads that share a quad of the output: each takes every SHARES-th split.
const SHARES: u32 = WORKGROUP / QUADS;
const LOWEST: f32 = -3.0e38;

var<workgroup> shares: array<vec4<f32>, WORKGROUP>;
var<workgroup> totals: array<f32, WORKGROUP>;

// Where a split's sums start.
fn part_at(split: u32, row: u32, head: u32) -> u32 {
    return ((split * step_rows() + row) * HEADS + head) * (QUADS + 1u);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let head = ids.group.x;
    let row = ids.group.y;
    let quad = ids.local % QUADS;
    let share = ids.local / QUADS;
    // Maximum, total and number of splits stand after the sums.
    let splits = u32(parts[part_at(0u, row, head) + QUADS].z);
    let last = splits - 1u;
    var top = LOWEST;
    var whole = vec4(0.0);
    var total = 0.0;
    // Four splits are read at a time; beyond the end the last one again, which counts nothing then.
    for (var s = share; s < splits; s += 4u * SHARES) {
        let split = vec4(s, s + SHARES, s + 2u * SHARES, s + 3u * SHARES);
        let a = part_at(split.x, row, head);
        let b = part_at(min(split.y, last), row, head);
        let c = part_at(min(split.z, last), row, head);
        let d = part_at(min(split.w, last), row, head);
        let sums_a = parts[a + quad];
        let sums_b = parts[b + quad];
        let sums_c = parts[c + quad];
        let sums_d = parts[d + quad];
        let tail_a = parts[a + QUADS];
        let tail_b = parts[b + QUADS];
        let tail_c = parts[c + QUADS];
        let tail_d = parts[d + QUADS];
        let tops = vec4(tail_a.x, tail_b.x, tail_c.x, tail_d.x);
        let highest = max(top, max(max(tops.x, tops.y), max(tops.z, tops.w)));
        let factors = select(vec4(0.0), exp(tops - highest), split <= vec4(last));
        let kept = exp(top - highest);
        whole = whole * kept + (sums_a * factors.x + sums_b * factors.y) + (sums_c * factors.z + sums_d * factors.w);
        total = total * kept + dot(factors, vec4(tail_a.y, tail_b.y, tail_c.y, tail_d.y));
        top = highest;
    }
    let factor = exp(top - group_max(ids, top));
    shares[ids.local] = whole * factor;
    totals[ids.local] = total * factor;
    workgroupBarrier();
    if ids.local < QUADS {
        var sums = vec4(0.0);
        var divisor = 0.0;
        for (var s = 0u; s < SHARES; s++) {
            sums += shares[s * QUADS + quad];
            divisor += totals[s * QUADS + quad];
        }
        let at = row * (OUT_STRIDE / 4u) + head * QUADS + quad;
        out[at] = sums / divisor * gate4(at) * mask_of(head);
    }
}
