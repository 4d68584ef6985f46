// The delta rule alone, for slices of heads: queries and keys come convolved and scaled to unit length, with decay, beta
// and k·q beside them; the results get their norm later. The ring moves on here, when the convolution has read it.
// Reads 8 KEY_DIM bytes of queries and keys per token, value head and slice.
@group(0) @binding(3) var<storage, read> qkv: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read> mixed: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> scalars: array<vec4<f32>>;

fn fetch(ids: Ids, job: Job, t: u32) -> Fetched {
    var fetched: Fetched;
    let row = job.first_row + t;
    let at = row * (CHANNELS / 4u);
    if ids.local < QUADS {
        let quad = at + job.key_head * QUADS + ids.local;
        fetched.query = mixed[quad];
        fetched.key = mixed[quad + KEY_HEADS * QUADS];
    } else if ids.local < QUADS + COL_QUADS {
        let first = (job.head * VALUE_DIM + job.first_col) / 4u;
        fetched.query = mixed[at + 2u * KEY_HEADS * QUADS + first + ids.local - QUADS];
    }
    if ids.local == 0u { fetched.gate = scalars[row * VALUE_HEADS + job.head]; }
    return fetched;
}

fn put_sums(ids: Ids, slot: u32, fetched: Fetched) {}

fn unit_factors(slot: u32) -> vec3<f32> { return vec3(1.0, 1.0, gates[slot].z); }

fn output_gate(job: Job, t: u32, col: u32, leads: bool) -> vec2<f32> { return vec2(0.0); }

fn finish(ids: Ids, job: Job, t: u32, col: u32, leads: bool, y: f32, gate: vec2<f32>) {
    if leads { out[(job.first_row + t) * OUT_STRIDE + job.head * VALUE_DIM + job.first_col + col] = y; }
}

fn remember(ids: Ids, job: Job) {
    let values = (job.head * VALUE_DIM + job.first_col) / 4u;
    if ids.local < COL_QUADS { move_ring(job, 2u * KEY_HEADS * QUADS + values + ids.local); }
    let leads = job.head % (VALUE_HEADS / KEY_HEADS) == 0u && job.first_col == 0u;
    if leads && ids.local < QUADS {
        move_ring(job, job.key_head * QUADS + ids.local);
        move_ring(job, (KEY_HEADS + job.key_head) * QUADS + ids.local);
    }
}
