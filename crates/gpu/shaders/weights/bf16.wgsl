// bf16 rows, four weights in two words. 2 bytes read per weight.
@group(0) @binding(10) var<storage, read> codes: array<vec2<u32>>;

// Weights at columns 4 c4 .. 4 c4 + 3.
fn weight4(row: u32, c4: u32) -> vec4<f32> {
    let words = codes[row * COLS4 + c4];
    let bits = vec4(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u);
    return bitcast<vec4<f32>>(bits);
}
