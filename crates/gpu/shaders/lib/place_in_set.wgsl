// Places in sets of 32 neighbours, by counting. The shader declares their keys as `sets` in workgroup memory.
fn keys_ahead(at: u32, key: u32, place: u32) -> u32 {
    return ahead4(vec4(sets[at], sets[at + 1u], sets[at + 2u], sets[at + 3u]), at, key, place);
}

// How many keys of its set come before one.
fn place_in_set(i: u32) -> u32 {
    let key = sets[i];
    let at = i / 32u * 32u;
    return keys_ahead(at, key, i) + keys_ahead(at + 4u, key, i)
        + keys_ahead(at + 8u, key, i) + keys_ahead(at + 12u, key, i)
        + keys_ahead(at + 16u, key, i) + keys_ahead(at + 20u, key, i)
        + keys_ahead(at + 24u, key, i) + keys_ahead(at + 28u, key, i);
}
