// Product of 32 ternary weights with 32 int8 activations: 10 bytes of weights, without the overlay.
struct Block { masks: vec2<u32>, scale: f32 }

fn load_block(row: u32, block: u32) -> Block {
    let index = row * BLOCKS + block;
    return Block(codes[index], group_scale(index));
}

// The codes of four elements as signed bytes: +1, 0 or -1.
fn signed4(masks: vec2<u32>, j: u32) -> u32 {
    let plus = (masks.x >> j) & 0x01010101u;
    let minus = (masks.y >> j) & 0x01010101u;
    return plus | (minus * 0xffu);
}

// `low` and `high` hold the activations, `scale` their scale and scale times sum.
fn dot_block(w: Block, low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>) -> f32 {
    let m = w.masks;
    let sum = dot4I8Packed(signed4(m, 0u), low.x) + dot4I8Packed(signed4(m, 1u), low.y)
        + dot4I8Packed(signed4(m, 2u), low.z) + dot4I8Packed(signed4(m, 3u), low.w)
        + dot4I8Packed(signed4(m, 4u), high.x) + dot4I8Packed(signed4(m, 5u), high.y)
        + dot4I8Packed(signed4(m, 6u), high.z) + dot4I8Packed(signed4(m, 7u), high.w);
    return w.scale * f32(sum) * scale.x;
}

// What a finished sum is multiplied by.
fn row_factor(row: u32) -> f32 { return 1.0; }
