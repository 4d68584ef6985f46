// The delta rule alone, for slices of heads: queries and keys come convolved and scaled to unit length, with decay, beta
// and k·q beside them; the results get their norm later. The ring moves on here, when the convolution has read it.
// Reads 8 KEY_DIM bytes of queries and keys per token, value head and slice.
@group(0) @binding(3) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> mixed_rows: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> scalars: array<vec4<f32>>;

struct Channels { open: bool }

fn open_channels(job: Job, thread: u32, quad: u32) -> Channels { return Channels(true); }

fn mixed(c: Channels, job: Job, thread: u32, quad: u32, t: u32, x: vec4<f32>) -> vec4<f32> { return x; }

fn slide(c: Channels, x: vec4<f32>) -> Channels { return c; }

fn fetch(job: Job, thread: u32, quad: u32, t: u32) -> Fetched {
    var fetched: Fetched;
    let row = job.first_row + t;
    if thread < VALUES_END { fetched.x = mixed_rows[row * (CHANNELS / 4u) + quad]; }
    if thread == WORKGROUP - 1u { fetched.gate = scalars[row * VALUE_HEADS + job.head]; }
    return fetched;
}

fn token_gates(thread: u32, gate: vec4<f32>) -> vec4<f32> { return gate; }

fn note_lengths(place: u32, here: u32) {}

fn unit_factors(slot: u32) -> vec3<f32> { return vec3(1.0, 1.0, gates[slot].z); }

fn output_gate(job: Job, t: u32, col: u32, leads: bool) -> vec2<f32> { return vec2(0.0); }

fn done_reading(job: Job, thread: u32) -> u32 { return 0u; }

fn finish(ids: Ids, job: Job, t: u32, col: u32, leads: bool, y: f32, gate: vec2<f32>, count: u32) {
    if leads { out[(job.first_row + t) * OUT_STRIDE + job.head * VALUE_DIM + job.first_col + col] = y; }
}

// Each slice has the channels of its own values; the first slice of a key head those of queries and keys.
fn close_channels(job: Job, thread: u32, quad: u32, channels: Channels) {
    let first = job.head % (VALUE_HEADS / KEY_HEADS) == 0u && job.first_col == 0u;
    if thread < VALUES_END && (first || thread >= KEYS_END) { move_ring(job, quad); }
}
