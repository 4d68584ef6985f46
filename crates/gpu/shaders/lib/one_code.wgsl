// A group of 32 int8 activations as products take it: a code per value.
struct Group { low: vec4<u32>, high: vec4<u32>, scale: vec2<f32> }

fn x_group(at: u32) -> Group { return Group(x_low(at), x_high(at), x_scale(at)); }

fn dot_group(w: Block, x: Group) -> f32 { return dot_block(w, x.low, x.high, x.scale); }
