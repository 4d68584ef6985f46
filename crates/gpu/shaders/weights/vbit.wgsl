// Rows of b = 3, 4, 5, 6 or 8 bits and f16 scales: b / 8 + 1 / 16 bytes read per weight.
// A group of 32 is b words, code k at bit k b; value (code - (2^(b-1) - 1)) * scale. 8-bit codes are stored minus 128.
@group(0) @binding(10) var<storage, read> codes: array<u32>;
@group(0) @binding(11) var<storage, read> scales: array<u32>;
@group(0) @binding(12) var<storage, read> row_info: array<vec2<u32>>;

fn group_scale(index: u32) -> f32 { return half_of(scales[index / 2u], index); }

// Four codes from code `first` of a group at word `base`, one in each byte.
fn four_codes(base: u32, bits: u32, first: u32) -> u32 {
    let at = first * bits;
    let word = base + at / 32u;
    let shift = at % 32u;
    var window = codes[word] >> shift;
    if shift + 4u * bits > 32u { window |= codes[word + 1u] << (32u - shift); }
    if bits == 8u { return window; }
    let mask = (1u << bits) - 1u;
    return (window & mask) | ((window >> bits) & mask) << 8u | ((window >> (2u * bits)) & mask) << 16u
        | ((window >> (3u * bits)) & mask) << 24u;
}

// What is added to a code, read as a signed byte, to give the signed level.
fn level_offset(bits: u32) -> i32 {
    if bits == 8u { return 1; }
    return 1 - (1 << (bits - 1u));
}

// Weights at columns 4 c4 .. 4 c4 + 3.
fn weight4(row: u32, c4: u32) -> vec4<f32> {
    let info = row_info[row];
    let block = c4 / 8u;
    let four = four_codes(info.x + block * info.y, info.y, 4u * (c4 % 8u));
    return vec4<f32>(unpack4xI8(four) + level_offset(info.y)) * group_scale(row * BLOCKS + block);
}
