// Signs, one word per group of 32, and f16 scales. 6 bytes read per 32 weights.
// Bit 8 k + j is element 4 j + k: 1 is +scale, 0 is -scale.
@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<vec2<u32>>;

fn group_scale(index: u32) -> f32 { return half_of(scales[index / 4u][index / 2u % 2u], index); }
fn group_bits(index: u32) -> u32 { return codes[index / 4u][index % 4u]; }

// Weights at columns 4 c4 .. 4 c4 + 3, without an overlay.
fn weight4(row: u32, c4: u32) -> vec4<f32> {
    let index = row * BLOCKS + c4 / 8u;
    let bits = unpack4xU8((group_bits(index) >> (c4 % 8u)) & 0x01010101u);
    return (2.0 * vec4<f32>(bits) - 1.0) * group_scale(index);
}
