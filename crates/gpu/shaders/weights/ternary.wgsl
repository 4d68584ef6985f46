// Plus and minus masks, two words per group of 32, and f16 scales. 10 bytes read per 32 weights, without the overlay.
// Bit 8 k + j is element 4 j + k.
@group(0) @binding(10) var<storage, read> codes: array<vec2<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;

fn group_scale(index: u32) -> f32 { return half_of(scales[index / 2u], index); }

// Weights at columns 4 c4 .. 4 c4 + 3, without the overlay.
fn weight4(row: u32, c4: u32) -> vec4<f32> {
    let index = row * BLOCKS + c4 / 8u;
    let masks = codes[index];
    let plus = unpack4xU8((masks.x >> (c4 % 8u)) & 0x01010101u);
    let minus = unpack4xU8((masks.y >> (c4 % 8u)) & 0x01010101u);
    return (vec4<f32>(plus) - vec4<f32>(minus)) * group_scale(index);
}
