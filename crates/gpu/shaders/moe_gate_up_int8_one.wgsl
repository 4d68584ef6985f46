// act(gate x) * (up x) of the chosen experts of one token, int8 activations. A workgroup makes NEURONS neighbouring
// neurons of one job; neurons along x, jobs along y. Reads the rows of each job's gate and up once: jobs * 2 * WIDTH
// rows. A lane has one or two blocks of eight rows on their way at a time, mostly all that it ever loads: written out,
// because compilers rarely unroll loops, and every turn of one waits for its loads.

const UP: u32 = select(0u, WIDTH, PAIR);

// The same block of a team's four rows.
struct Rows { a: Block, b: Block, c: Block, d: Block }

// Beyond the end the last block, whose activation counts nothing.
fn load_rows(rows: vec4<u32>, block: u32) -> Rows {
    let at = min(block, BLOCKS - 1u);
    return Rows(load_block(rows.x, at), load_block(rows.y, at), load_block(rows.z, at), load_block(rows.w, at));
}

fn dots(w: Rows, block: u32) -> vec4<f32> {
    let x = x_group(block);
    return vec4(dot_group(w.a, x), dot_group(w.b, x), dot_group(w.c, x), dot_group(w.d, x));
}

fn factors_of(rows: vec4<u32>) -> vec4<f32> {
    return vec4(row_factor(rows.x), row_factor(rows.y), row_factor(rows.z), row_factor(rows.w));
}

// Sums of a team's lanes, with what the overlays of the rows add.
fn totals(ids: Ids, rows: vec4<u32>, parts: vec4<f32>) -> vec4<f32> {
    let x = team_sum(ids, parts.x + overlay_dot(ids, rows.x, 0u));
    let y = team_sum(ids, parts.y + overlay_dot(ids, rows.y, 0u));
    let z = team_sum(ids, parts.z + overlay_dot(ids, rows.z, 0u));
    let w = team_sum(ids, parts.w + overlay_dot(ids, rows.w, 0u));
    return vec4(x, y, z, w);
}

// One of four values that all lanes have.
fn pick(four: vec4<f32>, lane: u32) -> f32 {
    return select(select(four.x, four.y, lane == 1u), select(four.z, four.w, lane == 3u), lane > 1u);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let job = ids.group.y;
    let first = ids.group.x * NEURONS;
    let raw = load_x(ids);
    let base = expert_row(job_expert(job));
    if base == NONE { return; }
    prepare_x(ids, raw);
    let lane = team_lane(ids);
    for (var n = 4u * team_index(ids); n < NEURONS; n += 4u * CREWS) {
        let rows = rows_of(base, first + n);
        var gates = vec4(0.0);
        var ups = vec4(0.0);
        let gate_factors = factors_of(rows);
        let up_factors = factors_of(rows + UP);
        for (var turn = 0u; turn < TURNS; turn++) {
            let block = turn * SPAN * TEAM + lane;
            let gate = load_rows(rows, block);
            var up: Rows;
            var next_gate: Rows;
            var next_up: Rows;
            if PAIR { up = load_rows(rows + UP, block); }
            if SPAN > 1u { next_gate = load_rows(rows, block + TEAM); }
            if SPAN > 1u && PAIR { next_up = load_rows(rows + UP, block + TEAM); }
            gates += dots(gate, block);
            if PAIR { ups += dots(up, block); }
            if SPAN > 1u { gates += dots(next_gate, block + TEAM); }
            if SPAN > 1u && PAIR { ups += dots(next_up, block + TEAM); }
        }
        gates = totals(ids, rows, gates * gate_factors);
        if PAIR { ups = totals(ids, rows + UP, ups * up_factors); }
        if lane < 4u { finish(job, first, n + lane, pick(gates, lane), pick(ups, lane)); }
    }
    workgroupBarrier();
    write_products(ids, job, first);
}
