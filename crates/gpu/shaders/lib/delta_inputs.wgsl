// What a gated delta net starts from: the raw rows of its convolution with its taps, and the inputs of its gates.
@group(0) @binding(3) var<storage, read> qkv: array<vec4<f32>>;
// Taps of four channels are KERNEL quads.
@group(0) @binding(4) var<storage, read> taps: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> decay_input: array<f32>;
@group(0) @binding(6) var<storage, read> beta_input: array<f32>;
@group(0) @binding(7) var<storage, read> a_log: array<f32>;
@group(0) @binding(8) var<storage, read> dt_bias: array<f32>;

fn silu4(x: vec4<f32>) -> vec4<f32> { return x / (1.0 + exp(-x)); }

// What the gates of a value head are made of.
fn gate_inputs(row: u32, head: u32) -> vec4<f32> {
    let at = row * GATE_STRIDE + head;
    return vec4(decay_input[at], beta_input[at], a_log[head], dt_bias[head]);
}

// Decay of the state and beta.
fn delta_gates(inputs: vec4<f32>) -> vec2<f32> {
    let x = inputs.x + inputs.w;
    let e = exp(min(x, 20.0));
    // log(1 + e) loses what a small e adds.
    let step = select(select(log(1.0 + e), e, x < -8.0), x, x > 20.0);
    return vec2(exp(-exp(inputs.z) * step), 1.0 / (1.0 + exp(-inputs.y)));
}
