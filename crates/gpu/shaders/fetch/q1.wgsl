// Half a group of signs and its scale.
struct Raw { bits: u32, scale: f32 }

// Weights at columns 16 c16 .. 16 c16 + 15.
fn fetch16(row: u32, c16: u32) -> Raw {
    let index = row * BLOCKS + c16 / 2u;
    return Raw(group_bits(index) >> (4u * (c16 & 1u)), group_scale(index));
}

// Weights 4 i .. 4 i + 3 of the sixteen.
fn raw4(raw: Raw, i: u32) -> vec4<f32> {
    let bits = unpack4xU8((raw.bits >> i) & 0x01010101u);
    return (2.0 * vec4<f32>(bits) - 1.0) * raw.scale;
}

// What a finished sum is multiplied by.
fn raw_factor(row: u32) -> f32 { return 1.0; }
