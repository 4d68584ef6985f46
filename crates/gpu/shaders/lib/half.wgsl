// Value `index` of a plane of f16 pairs, given its word.
fn half_of(word: u32, index: u32) -> f32 {
    let two = unpack2x16float(word);
    return select(two.x, two.y, (index & 1u) == 1u);
}
