// Product of 32 weights with 32 int8 activations: 18 bytes of weights.
struct Block { words: vec4<u32>, scale: f32 }

fn load_block(row: u32, block: u32) -> Block {
    let index = row * BLOCKS + block;
    return Block(codes[index], group_scale(index));
}

// `low` and `high` hold the activations, `scale` their scale and scale times sum.
fn dot_block(w: Block, low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>) -> f32 {
    let a = w.words & vec4(0x0f0f0f0fu);
    let b = (w.words >> vec4(4u)) & vec4(0x0f0f0f0fu);
    let sum = dot4I8Packed(a.x, low.x) + dot4I8Packed(a.y, low.y) + dot4I8Packed(a.z, low.z)
        + dot4I8Packed(a.w, low.w) + dot4I8Packed(b.x, high.x) + dot4I8Packed(b.y, high.y)
        + dot4I8Packed(b.z, high.z) + dot4I8Packed(b.w, high.w);
    return w.scale * (f32(sum) * scale.x - 8.0 * scale.y);
}

// What a finished sum is multiplied by.
fn row_factor(row: u32) -> f32 { return 1.0; }
