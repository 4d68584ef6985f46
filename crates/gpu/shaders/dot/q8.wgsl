// Product of 32 weights with 32 int8 activations: 32 bytes of weights.
struct Block { low: vec4<u32>, high: vec4<u32> }

fn load_block(row: u32, block: u32) -> Block {
    let at = row * (COLS4 / 4u) + 2u * block;
    return Block(codes[at], codes[at + 1u]);
}

// `low` and `high` hold the activations, `scale` their scale and scale times sum.
fn dot_block(w: Block, low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>) -> f32 {
    let sum = dot4I8Packed(w.low.x, low.x) + dot4I8Packed(w.low.y, low.y) + dot4I8Packed(w.low.z, low.z)
        + dot4I8Packed(w.low.w, low.w) + dot4I8Packed(w.high.x, high.x) + dot4I8Packed(w.high.y, high.y)
        + dot4I8Packed(w.high.z, high.z) + dot4I8Packed(w.high.w, high.w);
    return f32(sum) * scale.x;
}

// What a finished sum is multiplied by.
fn row_factor(row: u32) -> f32 { return scales[row]; }
