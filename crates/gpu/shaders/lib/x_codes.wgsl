// int8 activations in memory, in groups of 32; the second codes are X_REST groups after the first ones.
@group(0) @binding(7) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> x_scales: array<vec2<f32>>;

const REST: u32 = X_REST;

fn x_low(group: u32) -> vec4<u32> { return x_codes[2u * group]; }
fn x_high(group: u32) -> vec4<u32> { return x_codes[2u * group + 1u]; }
fn x_scale(group: u32) -> vec2<f32> { return x_scales[group]; }
