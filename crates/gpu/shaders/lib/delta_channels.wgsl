// The four channels that a thread convolves with any number of taps, token by token, from memory.
struct Channels { open: bool }

fn open_channels(job: Job, thread: u32, quad: u32) -> Channels { return Channels(true); }

fn mixed(c: Channels, job: Job, thread: u32, quad: u32, t: u32, x: vec4<f32>) -> vec4<f32> {
    if thread >= VALUES_END { return vec4(0.0); }
    return convolved(job.base, job.first_row, t, quad);
}

fn slide(c: Channels, x: vec4<f32>) -> Channels { return c; }

fn put_channels(job: Job, quad: u32, c: Channels) { move_ring(job, quad); }
