// f16 rows, four weights in two words. 2 bytes read per weight.
@group(0) @binding(10) var<storage, read> codes: array<vec2<u32>>;

// Weights at columns 4 c4 .. 4 c4 + 3.
fn weight4(row: u32, c4: u32) -> vec4<f32> {
    let words = codes[row * COLS4 + c4];
    return vec4(unpack2x16float(words.x), unpack2x16float(words.y));
}
