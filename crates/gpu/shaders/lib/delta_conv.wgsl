// The causal convolution before a gated delta net, its gates, and the ring of the last KERNEL - 1 raw rows, oldest
// first. `state` is a binding of the shader.
@group(0) @binding(3) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> taps: array<f32>;
@group(0) @binding(5) var<storage, read> decay_input: array<f32>;
@group(0) @binding(6) var<storage, read> beta_input: array<f32>;
@group(0) @binding(7) var<storage, read> a_log: array<f32>;
@group(0) @binding(8) var<storage, read> dt_bias: array<f32>;

fn silu4(x: vec4<f32>) -> vec4<f32> { return x / (1.0 + exp(-x)); }

// Convolution and SiLU of four channels of token `t` of a span that starts at `first_row`, with its ring at `base`.
fn convolved(base: u32, first_row: u32, t: u32, quad: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    for (var i = 0u; i < KERNEL; i++) {
        let back = KERNEL - 1u - i;
        var x: vec4<f32>;
        if t >= back {
            x = qkv[(first_row + t - back) * QKV_STRIDE4 + quad];
        } else {
            let at = base + (t + i) * CHANNELS + 4u * quad;
            x = vec4(state[at], state[at + 1u], state[at + 2u], state[at + 3u]);
        }
        let tap = 4u * quad * KERNEL + i;
        sum += x * vec4(taps[tap], taps[tap + KERNEL], taps[tap + 2u * KERNEL], taps[tap + 3u * KERNEL]);
    }
    return silu4(sum);
}

// Decay of the state and beta of a value head.
fn delta_gates(row: u32, head: u32) -> vec2<f32> {
    let x = decay_input[row * GATE_STRIDE + head] + dt_bias[head];
    let e = exp(min(x, 20.0));
    // log(1 + e) loses what a small e adds.
    let step = select(select(log(1.0 + e), e, x < -8.0), x, x > 20.0);
    return vec2(exp(-exp(a_log[head]) * step), 1.0 / (1.0 + exp(-beta_input[row * GATE_STRIDE + head])));
}
