// The causal convolution of `lib/delta_conv.wgsl` for four taps, written out, so that its loads do not wait for each
// other.

// Taps of four channels, oldest row first.
struct Taps { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn load_taps(quad: u32) -> Taps {
    let a = taps[4u * quad];
    let b = taps[4u * quad + 1u];
    let c = taps[4u * quad + 2u];
    let d = taps[4u * quad + 3u];
    return Taps(vec4(a.x, b.x, c.x, d.x), vec4(a.y, b.y, c.y, d.y), vec4(a.z, b.z, c.z, d.z), vec4(a.w, b.w, c.w, d.w));
}

fn raw_quad(base: u32, first_row: u32, t: u32, back: u32, quad: u32) -> vec4<f32> {
    if t >= back { return qkv[(first_row + t - back) * QKV_STRIDE4 + quad]; }
    return state[base + (t + 3u - back) * (CHANNELS / 4u) + quad];
}

// Convolution and SiLU of four channels of token `t` of a span that starts at `first_row`.
fn convolved(base: u32, first_row: u32, t: u32, quad: u32) -> vec4<f32> {
    let w = load_taps(quad);
    let a = raw_quad(base, first_row, t, 3u, quad);
    let b = raw_quad(base, first_row, t, 2u, quad);
    let c = raw_quad(base, first_row, t, 1u, quad);
    return silu4(a * w.a + b * w.b + c * w.c + qkv[(first_row + t) * QKV_STRIDE4 + quad] * w.d);
}
