// How many of four keys, at `first` and after it, come before `key` at `place`; of equals the lower place does.
fn ahead4(four: vec4<u32>, first: u32, key: u32, place: u32) -> u32 {
    let limit = vec4(key) - vec4<u32>(vec4(first) + vec4(0u, 1u, 2u, 3u) < vec4(place));
    let ahead = vec4<u32>(four > limit);
    return ahead.x + ahead.y + ahead.z + ahead.w;
}
