// FLOAT_ROWS rows of floats beside the INT8_ROWS rows of an int8 layout, with the same norm before them but without
// packing: the factor of the norm is the same for all columns and comes last, so that nothing waits for it. A workgroup
// does four rows, each thread its quads of columns in `lib/x_shared.wgsl`. Reads every weight once, and the input once
// per workgroup.
const FLOAT_GROUPS: u32 = (FLOAT_ROWS + 3u) / 4u;
const FLOAT_TEAMS: u32 = WORKGROUP / TEAM;

var<workgroup> float_sums: array<vec4<f32>, FLOAT_TEAMS>;
var<workgroup> float_squares: array<f32, FLOAT_TEAMS>;

fn float_weights(row: u32, thread: u32) -> Quads {
    let r = min(row, FLOAT_ROWS - 1u);
    let last = COLS4 - 1u;
    var q = Quads(float4(r, min(thread, last)), vec4(0.0), vec4(0.0), vec4(0.0));
    if QUADS_PER_THREAD > 1u { q.b = float4(r, min(thread + WORKGROUP, last)); }
    if QUADS_PER_THREAD > 2u { q.c = float4(r, min(thread + 2u * WORKGROUP, last)); }
    if QUADS_PER_THREAD > 3u { q.d = float4(r, min(thread + 3u * WORKGROUP, last)); }
    return q;
}

// Beyond the end the input is zero.
fn dot_quads(p: Quads, q: Quads) -> f32 { return dot(p.a, q.a) + dot(p.b, q.b) + dot(p.c, q.c) + dot(p.d, q.d); }

fn team_sum4(ids: Ids, v: vec4<f32>) -> vec4<f32> {
    return vec4(team_sum(ids, v.x), team_sum(ids, v.y), team_sum(ids, v.z), team_sum(ids, v.w));
}

fn put_float(row: u32, sum: f32) {
    if row < FLOAT_ROWS { put(0u, INT8_ROWS + row, sum); }
}

// The whole workgroup calls it together.
fn float_rows(ids: Ids, group: u32) {
    let thread = thread_index(ids);
    let row = 4u * group;
    let raw = load_quads(thread);
    let weights = weight_quads(thread);
    let a = float_weights(row, thread);
    let b = float_weights(row + 1u, thread);
    let c = float_weights(row + 2u, thread);
    let d = float_weights(row + 3u, thread);
    let x = Quads(raw.a * weights.a, raw.b * weights.b, raw.c * weights.c, raw.d * weights.d);
    let parts = team_sum4(ids, vec4(dot_quads(x, a), dot_quads(x, b), dot_quads(x, c), dot_quads(x, d)));
    let squares = team_sum(ids, dot_quads(raw, raw));
    if team_lane(ids) == 0u {
        float_sums[team_index(ids)] = parts;
        float_squares[team_index(ids)] = squares;
    }
    workgroupBarrier();
    // Each team adds up what all teams have; mostly one turn.
    var sums = vec4(0.0);
    var square = 0.0;
    for (var i = team_lane(ids); i < FLOAT_TEAMS; i += TEAM) {
        sums += float_sums[i];
        square += float_squares[i];
    }
    sums = team_sum4(ids, sums);
    square = team_sum(ids, square);
    if thread == 0u {
        if NORM { sums *= 1.0 / sqrt(square / f32(WIDTH) + EPS); }
        put_float(row, sums.x);
        put_float(row + 1u, sums.y);
        put_float(row + 2u, sums.z);
        put_float(row + 3u, sums.w);
    }
}
