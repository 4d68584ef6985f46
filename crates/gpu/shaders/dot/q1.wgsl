// Product of 32 signs with 32 int8 activations: 6 bytes of weights. Σ ±x = 2 Σ_{bit set} x - Σ x.
struct Block { bits: u32, scale: f32 }

fn load_block(row: u32, block: u32) -> Block {
    let index = row * BLOCKS + block;
    return Block(group_bits(index), group_scale(index));
}

// Sum of the activations whose bit is set.
fn masked_sum(bits: u32, low: vec4<u32>, high: vec4<u32>) -> i32 {
    let mask = 0x01010101u;
    return dot4I8Packed(bits & mask, low.x) + dot4I8Packed((bits >> 1u) & mask, low.y)
        + dot4I8Packed((bits >> 2u) & mask, low.z) + dot4I8Packed((bits >> 3u) & mask, low.w)
        + dot4I8Packed((bits >> 4u) & mask, high.x) + dot4I8Packed((bits >> 5u) & mask, high.y)
        + dot4I8Packed((bits >> 6u) & mask, high.z) + dot4I8Packed((bits >> 7u) & mask, high.w);
}

// `low` and `high` hold the activations, `scale` their scale and scale times sum.
fn dot_block(w: Block, low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>) -> f32 {
    return w.scale * (2.0 * f32(masked_sum(w.bits, low, high)) * scale.x - scale.y);
}

// What a finished sum is multiplied by.
fn row_factor(row: u32) -> f32 { return 1.0; }
