// Product of 32 weights of b bits with 32 int8 activations: 4 b + 2 bytes of weights.
struct Block { low: vec4<u32>, high: vec4<u32>, scale: f32, offset: f32 }

fn load_block(row: u32, block: u32) -> Block {
    let info = row_info[row];
    let base = info.x + block * info.y;
    let low = vec4(four_codes(base, info.y, 0u), four_codes(base, info.y, 4u), four_codes(base, info.y, 8u),
        four_codes(base, info.y, 12u));
    let high = vec4(four_codes(base, info.y, 16u), four_codes(base, info.y, 20u), four_codes(base, info.y, 24u),
        four_codes(base, info.y, 28u));
    return Block(low, high, group_scale(row * BLOCKS + block), f32(level_offset(info.y)));
}

// `low` and `high` hold the activations, `scale` their scale and scale times sum.
fn dot_block(w: Block, low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>) -> f32 {
    let sum = dot4I8Packed(w.low.x, low.x) + dot4I8Packed(w.low.y, low.y) + dot4I8Packed(w.low.z, low.z)
        + dot4I8Packed(w.low.w, low.w) + dot4I8Packed(w.high.x, high.x) + dot4I8Packed(w.high.y, high.y)
        + dot4I8Packed(w.high.z, high.z) + dot4I8Packed(w.high.w, high.w);
    return w.scale * (f32(sum) * scale.x + w.offset * scale.y);
}

// What a finished sum is multiplied by.
fn row_factor(row: u32) -> f32 { return 1.0; }
