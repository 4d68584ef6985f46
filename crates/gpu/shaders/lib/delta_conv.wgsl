// The causal convolution before a gated delta net, with any number of taps. `state`, a binding of the shader, holds the
// ring of the last KERNEL - 1 raw rows, oldest first, at quad `base`.

// Convolution and SiLU of four channels of token `t` of a span that starts at `first_row`.
fn convolved(base: u32, first_row: u32, t: u32, quad: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    for (var i = 0u; i < KERNEL; i++) {
        let back = KERNEL - 1u - i;
        var x: vec4<f32>;
        if t >= back {
            x = qkv[(first_row + t - back) * QKV_STRIDE4 + quad];
        } else {
            x = state[base + (t + i) * (CHANNELS / 4u) + quad];
        }
        sum += x * vec4(tap(quad, i), tap(quad, KERNEL + i), tap(quad, 2u * KERNEL + i), tap(quad, 3u * KERNEL + i));
    }
    return silu4(sum);
}

// Number `n` of the taps of four channels.
fn tap(quad: u32, n: u32) -> f32 { return taps[quad * KERNEL + n / 4u][n % 4u]; }
