// A rotated component of the head that the shader has in `head`.
fn rotated(row: u32, i: u32) -> f32 {
    if i >= 2u * PAIRS { return head[i]; }
    let pair = i % max(PAIRS, 1u);
    let angle = rope_angle(ROPE, PAIRS, row, pair);
    var a: f32;
    var b: f32;
    if INTERLEAVED {
        a = head[2u * pair];
        b = head[2u * pair + 1u];
    } else {
        a = head[pair];
        b = head[pair + PAIRS];
    }
    if i < PAIRS { return a * angle.x - b * angle.y; }
    return b * angle.x + a * angle.y;
}
