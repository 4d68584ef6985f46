// Gated delta rule for COLS columns of one value head's matrix S [KEY_DIM, VALUE_DIM]: x is head * SLICES + slice, y a
// span. Per token: S *= decay; d = beta (v - Sᵀk); S += k dᵀ; out = Sᵀq. Columns do not depend on each other.
//
// S stays in registers for the whole span: a thread holds 4 HELD rows of one column, PARTS threads share a column. Sᵀk
// and Sᵀq come from one pass over the old S, since Sᵀq of the new one is decay Sᵀq + (k·q) d; that pass also brings the
// last token's change in, so there is one barrier per token. Keys, queries and values of the next token are fetched
// while this one is worked on; of their three places one is read, one is read for the last change, one is written.
// Loops with loads or over arrays are written out, so that all loads are on their way together and S needs no memory.
//
// Reads and writes S once per span (8 KEY_DIM VALUE_DIM bytes per head); it stands as quads of rows, [QUADS, VALUE_DIM]
// vec4, behind the ring. `lib/delta_fused.wgsl` also does what comes before and after (decoding), `lib/delta_sliced.wgsl`
// leaves that to dispatches of their own (prefill).
@group(0) @binding(1) var<storage, read_write> state: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const SLICES: u32 = VALUE_DIM / COLS;
const ACTIVE: u32 = PARTS * COLS;
const PADDED: u32 = PARTS * HELD;
const COL_QUADS: u32 = COLS / 4u;
// Threads that bring a quad of a token's query, key and values, in this order.
const QUERIES_END: u32 = QUADS;
const KEYS_END: u32 = 2u * QUADS;
const VALUES_END: u32 = 2u * QUADS + COL_QUADS;

var<workgroup> keys: array<vec4<f32>, 3u * PADDED>;
var<workgroup> queries: array<vec4<f32>, 3u * PADDED>;
var<workgroup> values: array<vec4<f32>, 3u * COL_QUADS>;
// Decay and beta of the three tokens, and what a variant adds.
var<workgroup> gates: array<vec4<f32>, 3>;
// Sᵀk and Sᵀq of a thread's rows, for two tokens.
var<workgroup> partials: array<vec2<f32>, 2u * ACTIVE>;

// What a workgroup works on; `base` is the first quad of the sequence's slot.
struct Job { head: u32, key_head: u32, first_col: u32, span: u32, first_row: u32, rows: u32, base: u32 }

// What a thread fetched for a token: its quad, and the gates in the last thread.
struct Fetched { x: vec4<f32>, gate: vec4<f32> }

// Quads of rows of one column.
struct Four { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }
// HELD of them.
struct Held { a: Four, b: Four, c: Four, d: Four }

// The quad of channels that a thread brings.
fn own_quad(job: Job, thread: u32) -> u32 {
    if thread < QUERIES_END { return job.key_head * QUADS + thread; }
    if thread < KEYS_END { return (KEY_HEADS + job.key_head) * QUADS + thread - QUERIES_END; }
    let first = 2u * KEY_HEADS * QUADS + (job.head * VALUE_DIM + job.first_col) / 4u;
    return first + min(thread - KEYS_END, COL_QUADS - 1u);
}

// Quad `quad` of rows of the column at `at`; zero below the matrix.
fn state_quad(at: u32, quad: u32) -> vec4<f32> {
    return select(vec4(0.0), state[at + min(quad, QUADS - 1u) * VALUE_DIM], quad < QUADS);
}

fn load_four(at: u32, quad: u32) -> Four {
    return Four(state_quad(at, quad), state_quad(at, quad + 1u), state_quad(at, quad + 2u), state_quad(at, quad + 3u));
}

fn load_held(at: u32, quad: u32) -> Held {
    let none = Four(vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
    var s = Held(load_four(at, quad), none, none, none);
    if HELD > 4u { s.b = load_four(at, quad + 4u); }
    if HELD > 8u { s.c = load_four(at, quad + 8u); }
    if HELD > 12u { s.d = load_four(at, quad + 12u); }
    return s;
}

fn store_four(at: u32, quad: u32, s: Four) {
    if quad < QUADS { state[at + quad * VALUE_DIM] = s.a; }
    if quad + 1u < QUADS { state[at + (quad + 1u) * VALUE_DIM] = s.b; }
    if quad + 2u < QUADS { state[at + (quad + 2u) * VALUE_DIM] = s.c; }
    if quad + 3u < QUADS { state[at + (quad + 3u) * VALUE_DIM] = s.d; }
}

fn store_held(at: u32, quad: u32, s: Held) {
    store_four(at, quad, s.a);
    if HELD > 4u { store_four(at, quad + 4u, s.b); }
    if HELD > 8u { store_four(at, quad + 8u, s.c); }
    if HELD > 12u { store_four(at, quad + 12u, s.d); }
}

// S after a token with this decay and change, whose key is at `before`.
fn changed_four(s: Four, decay: f32, change: f32, before: u32) -> Four {
    return Four(
        s.a * decay + keys[before] * change,
        s.b * decay + keys[before + 1u] * change,
        s.c * decay + keys[before + 2u] * change,
        s.d * decay + keys[before + 3u] * change);
}

fn changed_held(s: Held, decay: f32, change: f32, before: u32) -> Held {
    var after = s;
    after.a = changed_four(s.a, decay, change, before);
    if HELD > 4u { after.b = changed_four(s.b, decay, change, before + 4u); }
    if HELD > 8u { after.c = changed_four(s.c, decay, change, before + 8u); }
    if HELD > 12u { after.d = changed_four(s.d, decay, change, before + 12u); }
    return after;
}

fn times_four(s: Four, by: Four) -> vec4<f32> { return s.a * by.a + s.b * by.b + s.c * by.c + s.d * by.d; }

fn keys_four(at: u32) -> Four { return Four(keys[at], keys[at + 1u], keys[at + 2u], keys[at + 3u]); }

fn queries_four(at: u32) -> Four { return Four(queries[at], queries[at + 1u], queries[at + 2u], queries[at + 3u]); }

// Sᵀk and Sᵀq of a thread's rows; the token's key and query are at `here`.
fn products_of(s: Held, here: u32) -> vec2<f32> {
    var with_key = times_four(s.a, keys_four(here));
    var with_query = times_four(s.a, queries_four(here));
    if HELD > 4u {
        with_key += times_four(s.b, keys_four(here + 4u));
        with_query += times_four(s.b, queries_four(here + 4u));
    }
    if HELD > 8u {
        with_key += times_four(s.c, keys_four(here + 8u));
        with_query += times_four(s.c, queries_four(here + 8u));
    }
    if HELD > 12u {
        with_key += times_four(s.d, keys_four(here + 12u));
        with_query += times_four(s.d, queries_four(here + 12u));
    }
    return vec2(dot(with_key, vec4(1.0)), dot(with_query, vec4(1.0)));
}

// The sum of a column's partials, the first of which is at `at`.
fn stored_sum(at: u32) -> vec2<f32> {
    var sum = partials[at];
    if PARTS > 1u { sum += partials[at + COLS]; }
    if PARTS > 2u { sum += partials[at + 2u * COLS]; }
    if PARTS > 3u { sum += partials[at + 3u * COLS]; }
    if PARTS > 4u { sum += partials[at + 4u * COLS]; }
    if PARTS > 5u { sum += partials[at + 5u * COLS]; }
    if PARTS > 6u { sum += partials[at + 6u * COLS]; }
    if PARTS > 7u { sum += partials[at + 7u * COLS]; }
    for (var p = 8u; p < PARTS; p++) { sum += partials[at + p * COLS]; }
    return sum;
}

// Puts a thread's quad of a token, and the gates, into place `slot`.
fn put_token(thread: u32, slot: u32, x: vec4<f32>, gate: vec4<f32>) {
    if thread < QUERIES_END {
        queries[slot * PADDED + thread] = x;
    } else if thread < KEYS_END {
        keys[slot * PADDED + thread - QUERIES_END] = x;
    } else if thread < VALUES_END {
        values[slot * COL_QUADS + thread - KEYS_END] = x;
    }
    if thread == WORKGROUP - 1u { gates[slot] = gate; }
}

// Zeroes what no first token fills: the padding of the last part, and the key before the first, whose change is 0.
fn clear(thread: u32) {
    for (var i = QUADS + thread; i < 3u * PADDED; i += WORKGROUP) {
        keys[i] = vec4(0.0);
        queries[i] = vec4(0.0);
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let thread = thread_index(ids);
    let span = ids.group.y;
    let head = ids.group.x / SLICES;
    let job = Job(head, head / (VALUE_HEADS / KEY_HEADS), (ids.group.x % SLICES) * COLS, span, span_first_row(span),
        span_len(span), span_slot(span) * (SLOT_FLOATS / 4u));
    let live = thread < ACTIVE;
    let place = min(thread, ACTIVE - 1u);
    let col = place % COLS;
    let part = place / COLS;
    let first_quad = part * HELD;
    let leads = live && part == 0u;
    let at = job.base + RING / 4u + head * QUADS * VALUE_DIM + job.first_col + col;
    // All loads of the first token, before anything waits for one.
    var s = load_held(at, first_quad);
    let quad = own_quad(job, thread);
    var channels = open_channels(job, thread, quad);
    var fetched = fetch(job, thread, quad, 0u);
    var gate = output_gate(job, 0u, col, leads);
    clear(thread);
    put_token(thread, 0u, mixed(channels, job, thread, quad, 0u, fetched.x), token_gates(thread, fetched.gate));
    channels = slide(channels, fetched.x);
    workgroupBarrier();
    var decay = 1.0;
    var change = 0.0;
    var count = 0u;
    for (var t = 0u; t < job.rows; t++) {
        let now = t % 3u;
        let here = now * PADDED + first_quad;
        let more = t + 1u < job.rows;
        var next_gate = vec2(0.0);
        if more {
            fetched = fetch(job, thread, quad, t + 1u);
            next_gate = output_gate(job, t + 1u, col, leads);
        } else {
            count = done_reading(job, thread);
        }
        s = changed_held(s, decay, change, ((t + 2u) % 3u) * PADDED + first_quad);
        let sums = (t % 2u) * ACTIVE;
        let own = products_of(s, here);
        if live { partials[sums + place] = own; }
        if live && col == 0u { note_lengths(now * PARTS + part, here); }
        if more {
            let x = mixed(channels, job, thread, quad, t + 1u, fetched.x);
            put_token(thread, (t + 1u) % 3u, x, token_gates(thread, fetched.gate));
            channels = slide(channels, fetched.x);
        }
        workgroupBarrier();
        let stored = stored_sum(sums + col);
        let factors = unit_factors(now);
        decay = gates[now].x;
        let value = values[now * COL_QUADS + col / 4u][col % 4u];
        let d = gates[now].y * (value - decay * stored.x * factors.x);
        change = d * factors.x;
        finish(ids, job, t, col, leads, decay * stored.y * factors.y + factors.z * d, gate, count);
        gate = next_gate;
    }
    s = changed_held(s, decay, change, ((job.rows + 2u) % 3u) * PADDED + first_quad);
    if live { store_held(at, first_quad, s); }
    close_channels(job, thread, quad, channels);
}
