// The delta rule with everything around it, for whole heads: convolution and unit norms while tokens are fetched, gated
// RMS norm when they are done, and the ring. Reads 8 KEY_DIM bytes of queries and keys per tap and value head.
@group(0) @binding(9) var<storage, read> z: array<f32>;
@group(0) @binding(10) var<storage, read> norm: array<f32>;
// How many value heads of a span's key head are done with its old ring, [spans, KEY_HEADS]; 0 between dispatches.
@group(0) @binding(11) var<storage, read_write> finished: array<atomic<u32>>;

const DELTA_TEAMS: u32 = WORKGROUP / TEAM;

// |q|², |k|² and q·k of a token, by teams.
var<workgroup> products: array<vec4<f32>, 3u * DELTA_TEAMS>;
var<workgroup> squares: array<f32, DELTA_TEAMS>;
var<workgroup> order: u32;

fn fetch(ids: Ids, job: Job, t: u32) -> Fetched {
    var fetched: Fetched;
    if ids.local < QUADS {
        let quad = job.key_head * QUADS + ids.local;
        fetched.query = convolved(job.base, job.first_row, t, quad);
        fetched.key = convolved(job.base, job.first_row, t, KEY_HEADS * QUADS + quad);
    } else if ids.local < QUADS + COL_QUADS {
        let quad = 2u * KEY_HEADS * QUADS + job.head * COL_QUADS + ids.local - QUADS;
        fetched.query = convolved(job.base, job.first_row, t, quad);
    }
    if ids.local == 0u { fetched.gate = vec4(delta_gates(job.first_row + t, job.head), 0.0, 0.0); }
    return fetched;
}

// The sums that the unit norms need. All threads come here together.
fn put_sums(ids: Ids, slot: u32, fetched: Fetched) {
    // `key` is zero where `query` holds values.
    let own = ids.local < QUADS;
    let q = team_sum(ids, select(0.0, dot(fetched.query, fetched.query), own));
    let k = team_sum(ids, dot(fetched.key, fetched.key));
    let qk = team_sum(ids, dot(fetched.query, fetched.key));
    if team_lane(ids) == 0u { products[slot * DELTA_TEAMS + team_index(ids)] = vec4(q, k, qk, 0.0); }
}

// 1 / |k|, 1 / (|q| sqrt(KEY_DIM)), and k·q of the vectors so scaled.
fn unit_factors(slot: u32) -> vec3<f32> {
    var sums = vec4(0.0);
    for (var i = 0u; i < DELTA_TEAMS; i++) { sums += products[slot * DELTA_TEAMS + i]; }
    let key = 1.0 / sqrt(sums.y + 1e-6);
    let query = 1.0 / (sqrt(sums.x + 1e-6) * sqrt(f32(KEY_DIM)));
    return vec3(key, query, sums.z * key * query);
}

fn output_gate(job: Job, t: u32, col: u32, leads: bool) -> vec2<f32> {
    if !leads { return vec2(0.0); }
    return vec2(z[(job.first_row + t) * OUT_STRIDE + job.head * VALUE_DIM + col], norm[col]);
}

fn finish(ids: Ids, job: Job, t: u32, col: u32, leads: bool, y: f32, gate: vec2<f32>) {
    let part = team_sum(ids, select(0.0, y * y, leads));
    if team_lane(ids) == 0u { squares[team_index(ids)] = part; }
    workgroupBarrier();
    var square = 0.0;
    for (var i = 0u; i < DELTA_TEAMS; i++) { square += squares[i]; }
    let factor = 1.0 / sqrt(square / f32(VALUE_DIM) + EPS);
    if leads {
        let silu = gate.x / (1.0 + exp(-gate.x));
        out[(job.first_row + t) * OUT_STRIDE + job.head * VALUE_DIM + col] = y * factor * gate.y * silu;
    }
}

// Moves the ring on: each head the channels of its own values, the last head of a key head those of queries and keys,
// when nobody reads the old ones any more. Every thread's reads lie before a barrier and so before the count.
fn remember(ids: Ids, job: Job) {
    if ids.local < COL_QUADS { move_ring(job, 2u * KEY_HEADS * QUADS + job.head * COL_QUADS + ids.local); }
    let counter = job.span * KEY_HEADS + job.key_head;
    if ids.local == 0u { order = atomicAdd(&finished[counter], 1u); }
    workgroupBarrier();
    if order + 1u == VALUE_HEADS / KEY_HEADS {
        if ids.local == 0u { atomicStore(&finished[counter], 0u); }
        if ids.local < QUADS {
            move_ring(job, job.key_head * QUADS + ids.local);
            move_ring(job, (KEY_HEADS + job.key_head) * QUADS + ids.local);
        }
    }
}
