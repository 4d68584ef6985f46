// Half a group of nibbles and its scale. Two neighbouring fetches read the same 16 bytes.
struct Raw { words: vec4<u32>, scale: f32 }

// Weights at columns 16 c16 .. 16 c16 + 15.
fn fetch16(row: u32, c16: u32) -> Raw {
    let index = row * BLOCKS + c16 / 2u;
    return Raw((codes[index] >> vec4(4u * (c16 & 1u))) & vec4(0x0f0f0f0fu), group_scale(index));
}

// Weights 4 i .. 4 i + 3 of the sixteen.
fn raw4(raw: Raw, i: u32) -> vec4<f32> { return (vec4<f32>(unpack4xU8(raw.words[i])) - 8.0) * raw.scale; }

// What a finished sum is multiplied by.
fn raw_factor(row: u32) -> f32 { return 1.0; }
