// The four channels that a thread convolves with four taps, token by token: taps and the last three raw rows stay in
// registers, and what is left of them at the end is the new ring.
struct Channels { taps: Taps, a: vec4<f32>, b: vec4<f32>, c: vec4<f32> }

fn open_channels(job: Job, thread: u32, quad: u32) -> Channels {
    var channels: Channels;
    if thread < VALUES_END {
        let at = job.base + quad;
        let stride = CHANNELS / 4u;
        channels = Channels(load_taps(quad), state[at], state[at + stride], state[at + 2u * stride]);
    }
    return channels;
}

fn mixed(c: Channels, job: Job, thread: u32, quad: u32, t: u32, x: vec4<f32>) -> vec4<f32> {
    return silu4(c.a * c.taps.a + c.b * c.taps.b + c.c * c.taps.c + x * c.taps.d);
}

fn slide(c: Channels, x: vec4<f32>) -> Channels { return Channels(c.taps, c.b, c.c, x); }

fn put_channels(job: Job, quad: u32, c: Channels) {
    let at = job.base + quad;
    let stride = CHANNELS / 4u;
    state[at] = c.a;
    state[at + stride] = c.b;
    state[at + 2u * stride] = c.c;
}
