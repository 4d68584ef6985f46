// The activation is normed with these weights before it is used.
@group(0) @binding(7) var<storage, read> norm_weights: array<vec4<f32>>;
const NORM: bool = true;
fn norm_weight4(c4: u32) -> vec4<f32> { return norm_weights[c4]; }
