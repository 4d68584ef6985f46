// f16 rows beside those of another layout.
@group(0) @binding(14) var<storage, read> floats: array<vec2<u32>>;
fn float4(row: u32, c4: u32) -> vec4<f32> {
    let words = floats[row * COLS4 + c4];
    return vec4(unpack2x16float(words.x), unpack2x16float(words.y));
}
