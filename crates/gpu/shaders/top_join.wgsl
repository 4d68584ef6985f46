// The TOP_K best tokens of a row from those of its slices: id and logit, `[logit row][place]`, best first.
// One workgroup per logit row (y). Reads a key of every slice and place, ids and logits of the chosen.
@group(0) @binding(1) var<storage, read> logits: array<u32>;
@group(0) @binding(2) var<storage, read> keys: array<u32>;
@group(0) @binding(3) var<storage, read> tokens: array<u32>;
@group(0) @binding(4) var<storage, read_write> best: array<vec2<u32>>;

fn list_key(row: u32, place: u32, list: u32) -> u32 {
    return keys[(row * TOP_K + place) * SLICES_STRIDE + list];
}

// Stores what stands at a place of the merged list of a row.
fn put(group: vec2<u32>, place: u32, key: u32, entry: u32) {
    let row = group.y;
    // Places beyond a small vocabulary hold nobody, whose id is outside; the host does not read them.
    let token = tokens[(row * TOP_K + entry % LENGTH) * SLICES_STRIDE + entry / LENGTH];
    best[row * TOP_K + place] = vec2(token, logits[row * WIDTH + min(token, WIDTH - 1u)]);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    start_merge(ids.local);
    workgroupBarrier();
    merge(ids.group.xy, ids.local);
}
