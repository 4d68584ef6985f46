// Gated delta rule for COLS columns of one value head's matrix S [KEY_DIM, VALUE_DIM]: x is head * SLICES + slice, y a
// span. Per token: S *= decay; d = beta (v - Sᵀk); S += k dᵀ; out = Sᵀq. Columns do not depend on each other.
//
// S stays in registers for the whole span: a thread holds 4 HELD rows of one column, PARTS threads share a column. Sᵀk
// and Sᵀq come from one pass over the old S, since Sᵀq of the new one is decay Sᵀq + (k·q) d; that pass also brings the
// last token's change in, so there is one barrier per token. Keys, queries and values of the next token are fetched
// while this one is worked on; of their three places one is read, one is read for the last change, one is written.
//
// Reads and writes S once per span (8 KEY_DIM VALUE_DIM bytes per head). `lib/delta_fused.wgsl` also does what comes
// before and after (decoding), `lib/delta_sliced.wgsl` leaves that to dispatches of their own (prefill).
@group(0) @binding(1) var<storage, read_write> state: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const SLICES: u32 = VALUE_DIM / COLS;
const ACTIVE: u32 = PARTS * COLS;
const PADDED: u32 = PARTS * HELD;
const COL_QUADS: u32 = COLS / 4u;

var<workgroup> keys: array<vec4<f32>, 3u * PADDED>;
var<workgroup> queries: array<vec4<f32>, 3u * PADDED>;
var<workgroup> values: array<vec4<f32>, 3u * COL_QUADS>;
// Decay and beta of the three tokens, and what a variant adds.
var<workgroup> gates: array<vec4<f32>, 3>;
// Sᵀk and Sᵀq of a thread's rows, for two tokens.
var<workgroup> partials: array<vec2<f32>, 2u * ACTIVE>;

// What a workgroup works on.
struct Job { head: u32, key_head: u32, first_col: u32, span: u32, first_row: u32, rows: u32, base: u32 }

// What a thread fetched for a token: a quad of the query and of the key, or a quad of the values.
struct Fetched { query: vec4<f32>, key: vec4<f32>, gate: vec4<f32> }

// Rows 4 quad .. 4 quad + 3 of the column at `at`; zero below the matrix.
fn state_quad(at: u32, quad: u32) -> vec4<f32> {
    if quad >= QUADS { return vec4(0.0); }
    let i = at + 4u * quad * VALUE_DIM;
    return vec4(state[i], state[i + VALUE_DIM], state[i + 2u * VALUE_DIM], state[i + 3u * VALUE_DIM]);
}

fn put_state_quad(at: u32, quad: u32, x: vec4<f32>) {
    if quad >= QUADS { return; }
    let i = at + 4u * quad * VALUE_DIM;
    state[i] = x.x;
    state[i + VALUE_DIM] = x.y;
    state[i + 2u * VALUE_DIM] = x.z;
    state[i + 3u * VALUE_DIM] = x.w;
}

// Puts what the threads fetched into place `slot`.
fn put(ids: Ids, slot: u32, fetched: Fetched) {
    if ids.local < QUADS {
        queries[slot * PADDED + ids.local] = fetched.query;
        keys[slot * PADDED + ids.local] = fetched.key;
    } else if ids.local < QUADS + COL_QUADS {
        values[slot * COL_QUADS + ids.local - QUADS] = fetched.query;
    }
    if ids.local == 0u { gates[slot] = fetched.gate; }
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let span = ids.group.y;
    let head = ids.group.x / SLICES;
    let job = Job(head, head / (VALUE_HEADS / KEY_HEADS), (ids.group.x % SLICES) * COLS, span, span_first_row(span),
        span_len(span), span_slot(span) * SLOT_FLOATS);
    let live = ids.local < ACTIVE;
    let place = min(ids.local, ACTIVE - 1u);
    let col = place % COLS;
    let first_quad = (place / COLS) * HELD;
    let leads = live && first_quad == 0u;
    let at = job.base + RING + head * KEY_DIM * VALUE_DIM + job.first_col + col;
    var s: array<vec4<f32>, HELD>;
    for (var i = 0u; i < HELD; i++) { s[i] = state_quad(at, first_quad + i); }
    let first = fetch(ids, job, 0u);
    // The padding of the last part, and the keys of the token before the first, whose change is 0.
    for (var i = ids.local; i < 3u * PADDED; i += WORKGROUP) {
        keys[i] = vec4(0.0);
        queries[i] = vec4(0.0);
    }
    workgroupBarrier();
    put(ids, 0u, first);
    put_sums(ids, 0u, first);
    workgroupBarrier();
    var decay = 1.0;
    var change = 0.0;
    for (var t = 0u; t < job.rows; t++) {
        let now = t % 3u;
        let next = (t + 1u) % 3u;
        let before = ((t + 2u) % 3u) * PADDED + first_quad;
        let here = now * PADDED + first_quad;
        let gate = output_gate(job, t, col, leads);
        var fetched: Fetched;
        if t + 1u < job.rows { fetched = fetch(ids, job, t + 1u); }
        var with_key = vec4(0.0);
        var with_query = vec4(0.0);
        for (var i = 0u; i < HELD; i++) {
            let x = s[i] * decay + keys[before + i] * change;
            with_key += x * keys[here + i];
            with_query += x * queries[here + i];
            s[i] = x;
        }
        let sums = (t % 2u) * ACTIVE;
        if live { partials[sums + place] = vec2(dot(with_key, vec4(1.0)), dot(with_query, vec4(1.0))); }
        if t + 1u < job.rows { put(ids, next, fetched); put_sums(ids, next, fetched); }
        workgroupBarrier();
        var stored = vec2(0.0);
        for (var p = 0u; p < PARTS; p++) { stored += partials[sums + p * COLS + col]; }
        let factors = unit_factors(now);
        decay = gates[now].x;
        let value = values[now * COL_QUADS + col / 4u][col % 4u];
        let d = gates[now].y * (value - decay * stored.x * factors.x);
        change = d * factors.x;
        finish(ids, job, t, col, leads, decay * stored.y * factors.y + factors.z * d, gate);
    }
    let last = ((job.rows + 2u) % 3u) * PADDED + first_quad;
    if live {
        for (var i = 0u; i < HELD; i++) {
            put_state_quad(at, first_quad + i, s[i] * decay + keys[last + i] * change);
        }
    }
    remember(ids, job);
}
