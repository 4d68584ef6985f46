// Nibbles, one vec4 per group of 32, and f16 scales. 18 bytes read per 32 weights.
// Byte k of word j: element 4 j + k low, element 16 + 4 j + k high; value (nibble - 8) * scale.
@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;

fn group_scale(index: u32) -> f32 { return half_of(scales[index / 2u], index); }

// Weights at columns 4 c4 .. 4 c4 + 3.
fn weight4(row: u32, c4: u32) -> vec4<f32> {
    let index = row * BLOCKS + c4 / 8u;
    let nibbles = (codes[index][c4 % 4u] >> (c4 & 4u)) & 0x0f0f0f0fu;
    return (vec4<f32>(unpack4xU8(nibbles)) - 8.0) * group_scale(index);
}
