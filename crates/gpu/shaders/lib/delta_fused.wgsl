// The delta rule with everything around it, for whole heads: convolution and unit norms while tokens are fetched, gated
// RMS norm when they are done, and the ring. Reads 8 KEY_DIM bytes of queries and keys per value head and token.
@group(0) @binding(9) var<storage, read> z: array<f32>;
@group(0) @binding(10) var<storage, read> norm: array<f32>;
// How many value heads of a span's key head are done with its old ring, [spans, KEY_HEADS]; 0 between dispatches.
@group(0) @binding(11) var<storage, read_write> finished: array<atomic<u32>>;

// Teams with threads that lead a column.
const LEADING_TEAMS: u32 = (COLS + TEAM - 1u) / TEAM;

// |q|², |k|² and q·k of three tokens, by parts.
var<workgroup> lengths: array<vec4<f32>, 3u * PARTS>;
var<workgroup> squares: array<f32, max(LEADING_TEAMS, 4u)>;
var<workgroup> order: u32;

fn fetch(job: Job, thread: u32, quad: u32, t: u32) -> Fetched {
    var fetched: Fetched;
    if thread < VALUES_END { fetched.x = qkv[(job.first_row + t) * QKV_STRIDE4 + quad]; }
    if thread == WORKGROUP - 1u { fetched.gate = gate_inputs(job.first_row + t, job.head); }
    return fetched;
}

fn token_gates(thread: u32, inputs: vec4<f32>) -> vec4<f32> { return vec4(delta_gates(inputs), 0.0, 0.0); }

fn lengths_four(at: u32) -> vec4<f32> {
    let q = queries_four(at);
    let k = keys_four(at);
    let lengths = vec3(dot(times_four(q, q), vec4(1.0)), dot(times_four(k, k), vec4(1.0)), dot(times_four(q, k), vec4(1.0)));
    return vec4(lengths, 0.0);
}

// What the unit norms need of the rows of a part.
fn note_lengths(place: u32, here: u32) {
    var sums = lengths_four(here);
    if HELD > 4u { sums += lengths_four(here + 4u); }
    if HELD > 8u { sums += lengths_four(here + 8u); }
    if HELD > 12u { sums += lengths_four(here + 12u); }
    lengths[place] = sums;
}

// 1 / |k|, 1 / (|q| sqrt(KEY_DIM)), and k·q of the vectors so scaled.
fn unit_factors(slot: u32) -> vec3<f32> {
    let at = slot * PARTS;
    var sums = lengths[at];
    if PARTS > 1u { sums += lengths[at + 1u]; }
    if PARTS > 2u { sums += lengths[at + 2u]; }
    if PARTS > 3u { sums += lengths[at + 3u]; }
    for (var p = 4u; p < PARTS; p++) { sums += lengths[at + p]; }
    let key = 1.0 / sqrt(sums.y + 1e-6);
    let query = 1.0 / (sqrt(sums.x + 1e-6) * sqrt(f32(KEY_DIM)));
    return vec3(key, query, sums.z * key * query);
}

fn output_gate(job: Job, t: u32, col: u32, leads: bool) -> vec2<f32> {
    if !leads { return vec2(0.0); }
    return vec2(z[(job.first_row + t) * OUT_STRIDE + job.head * VALUE_DIM + col], norm[col]);
}

// Counts this head, when every read of the old ring lies before a barrier. The answer is waited for in `finish`.
fn done_reading(job: Job, thread: u32) -> u32 {
    if thread != 0u { return 0u; }
    return atomicAdd(&finished[job.span * KEY_HEADS + job.key_head], 1u);
}

fn finish(ids: Ids, job: Job, t: u32, col: u32, leads: bool, y: f32, gate: vec2<f32>, count: u32) {
    let part = team_sum(ids, select(0.0, y * y, leads));
    if team_lane(ids) == 0u && team_index(ids) < LEADING_TEAMS { squares[team_index(ids)] = part; }
    if thread_index(ids) == 0u { order = count; }
    workgroupBarrier();
    if leads {
        var square = squares[0];
        if LEADING_TEAMS > 1u { square += squares[1]; }
        if LEADING_TEAMS > 2u { square += squares[2]; }
        if LEADING_TEAMS > 3u { square += squares[3]; }
        for (var i = 4u; i < LEADING_TEAMS; i++) { square += squares[i]; }
        let factor = 1.0 / sqrt(square / f32(VALUE_DIM) + EPS);
        let silu = gate.x / (1.0 + exp(-gate.x));
        out[(job.first_row + t) * OUT_STRIDE + job.head * VALUE_DIM + col] = y * factor * gate.y * silu;
    }
}

// Moves the ring on: each head the channels of its own values, the last head of a key head those of queries and keys,
// when nobody reads the old ones any more.
fn close_channels(job: Job, thread: u32, quad: u32, channels: Channels) {
    let last = order + 1u == VALUE_HEADS / KEY_HEADS;
    if last && thread == 0u { atomicStore(&finished[job.span * KEY_HEADS + job.key_head], 0u); }
    if thread < VALUES_END && (last || thread >= KEYS_END) { put_channels(job, quad, channels); }
}
