// A group of 32 int8 activations as products take it: two codes per value. The second, REST groups further on, codes
// what the first leaves, at a 254th of its scale: together they are off by 1 / 64,500 of the largest value of the group
// at most. The weights are loaded once for both.
struct Group {
    low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>, rest_low: vec4<u32>, rest_high: vec4<u32>, rest_scale: vec2<f32>
}

fn x_group(at: u32) -> Group {
    let rest = at + REST;
    return Group(x_low(at), x_high(at), x_scale(at), x_low(rest), x_high(rest), x_scale(rest));
}

fn dot_group(w: Block, x: Group) -> f32 {
    return dot_block(w, x.low, x.high, x.scale) + dot_block(w, x.rest_low, x.rest_high, x.rest_scale);
}
