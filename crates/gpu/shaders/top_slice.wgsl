// The TOP_K best tokens of a slice of the vocabulary, sorted: keys and ids, `[logit row][place][slice]`.
// Grid: slices along x, logit rows along y. Reads the SLICE logits once, writes TOP_K keys and ids.
//
// Sets of 32 neighbours are sorted by counting, then joined.
@group(0) @binding(1) var<storage, read> logits: array<u32>;
@group(0) @binding(2) var<storage, read_write> keys: array<u32>;
@group(0) @binding(3) var<storage, read_write> tokens: array<u32>;

// Sets are the LISTS; of each the LENGTH best count.
var<workgroup> sets: array<u32, SLICE>;
// [place][set].
var<workgroup> sorted: array<u32, LENGTH * LISTS>;

fn list_key(row: u32, place: u32, list: u32) -> u32 { return sorted[place * LISTS + list]; }

// Where in the slice the key at a place of a set stands.
fn index_of(list: u32, place: u32, key: u32) -> u32 {
    let first = list * 32u;
    // Equal keys that come before it.
    var equals = place;
    for (var i = first; i < first + 32u; i++) { equals -= u32(sets[i] > key); }
    for (var i = first; i < first + 32u; i++) {
        if sets[i] == key {
            if equals == 0u { return i; }
            equals--;
        }
    }
    return first;
}

// Stores what stands at a place of the merged list of a slice of a row.
fn put(group: vec2<u32>, place: u32, key: u32, entry: u32) {
    let at = (group.y * TOP_K + place) * SLICES_STRIDE + group.x;
    keys[at] = key;
    tokens[at] = group.x * SLICE + index_of(entry / LENGTH, entry % LENGTH, key);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let slice = ids.group.x;
    let row = ids.group.y;
    start_merge(ids.local);
    for (var i = ids.local; i < SLICE; i += WORKGROUP) {
        let token = slice * SLICE + i;
        let key = key_of(logits[row * WIDTH + min(token, WIDTH - 1u)]);
        sets[i] = select(NOBODY, key, token < WIDTH);
    }
    workgroupBarrier();
    for (var i = ids.local; i < SLICE; i += WORKGROUP) {
        let place = place_in_set(i);
        if place < LENGTH { sorted[place * LISTS + i / 32u] = sets[i]; }
    }
    workgroupBarrier();
    merge(ids.group.xy, ids.local);
}
