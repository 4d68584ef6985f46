// The TOP_K first of LISTS sorted lists of LENGTH keys each; of equal keys that in the list of the lower number is first.
//
// An entry at place p of its list, whose key comes after those of r other lists at the same place, has at least
// r * (p + 1) + p others before it. So only those with (r + 1) * (p + 1) <= TOP_K can be among the first TOP_K: about
// TOP_K * ln(TOP_K), few enough to compare each with all. FINALISTS is their largest number.
//
// The shader defines `list_key(row, place, list)`, which is 0 for lists from LISTS up to a multiple of four, and
// `put(group, place, key, entry)`, which stores one of the merged list.
var<workgroup> finalist_count: atomic<u32>;
var<workgroup> finalist_keys: array<u32, FINALISTS>;
// list * LENGTH + place: rising where keys are equal.
var<workgroup> finalist_entries: array<u32, FINALISTS>;

// Before the first barrier.
fn start_merge(local: u32) {
    if local == 0u { atomicStore(&finalist_count, 0u); }
}

fn lists_ahead(row: u32, place: u32, at: u32, key: u32, list: u32) -> u32 {
    let four = vec4(list_key(row, place, at), list_key(row, place, at + 1u), list_key(row, place, at + 2u),
        list_key(row, place, at + 3u));
    return ahead4(four, at, key, list);
}

// Finds the finalists; a barrier must follow.
fn find_finalists(row: u32, local: u32) {
    for (var i = local; i < LISTS * LENGTH; i += WORKGROUP) {
        let place = i / LISTS;
        let list = i % LISTS;
        let key = list_key(row, place, list);
        let most = TOP_K / (place + 1u);
        var ahead = 0u;
        for (var at = 0u; at < LISTS && ahead < most; at += 4u) { ahead += lists_ahead(row, place, at, key, list); }
        if ahead < most {
            let finalist = atomicAdd(&finalist_count, 1u);
            finalist_keys[finalist] = key;
            finalist_entries[finalist] = list * LENGTH + place;
        }
    }
}

// How many come before a finalist. Right below TOP_K; who is not among the first TOP_K gets at least that.
fn place_of(finalist: u32, count: u32) -> u32 {
    let key = finalist_keys[finalist];
    let entry = finalist_entries[finalist];
    var before = 0u;
    for (var i = 0u; i < count; i++) {
        let other = finalist_keys[i];
        before += u32(other > key || (other == key && finalist_entries[i] < entry));
    }
    return before;
}

// Merges the lists of the row that the workgroup's y names; all its threads call this together, after start_merge and a
// barrier.
fn merge(group: vec2<u32>, local: u32) {
    find_finalists(group.y, local);
    workgroupBarrier();
    let count = atomicLoad(&finalist_count);
    for (var f = local; f < count; f += WORKGROUP) {
        let place = place_of(f, count);
        if place < TOP_K { put(group, place, finalist_keys[f], finalist_entries[f]); }
    }
}
