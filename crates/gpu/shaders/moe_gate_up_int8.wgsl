// act(gate x) * (up x) of the chosen experts, int8 activations. A workgroup makes NEURONS neighbouring neurons of one
// job; neurons along x, jobs along y. Reads the rows of each job's gate and up once: jobs * 2 * WIDTH rows.

fn dots(rows: vec4<u32>, block: u32, x: Group) -> vec4<f32> {
    // All four are on their way before the first is used.
    let a = load_block(rows.x, block);
    let b = load_block(rows.y, block);
    let c = load_block(rows.z, block);
    let d = load_block(rows.w, block);
    return vec4(dot_group(a, x), dot_group(b, x), dot_group(c, x), dot_group(d, x));
}

// Sums of a team's lanes, with what the overlays of the rows add.
fn totals(ids: Ids, rows: vec4<u32>, token: u32, parts: vec4<f32>) -> vec4<f32> {
    let x = team_sum(ids, parts.x * row_factor(rows.x) + overlay_dot(ids, rows.x, token));
    let y = team_sum(ids, parts.y * row_factor(rows.y) + overlay_dot(ids, rows.y, token));
    let z = team_sum(ids, parts.z * row_factor(rows.z) + overlay_dot(ids, rows.z, token));
    let w = team_sum(ids, parts.w * row_factor(rows.w) + overlay_dot(ids, rows.w, token));
    return vec4(x, y, z, w);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let job = ids.group.y;
    let token = job / JOBS;
    let first = ids.group.x * NEURONS;
    let base = expert_row(job_expert(job));
    if base == NONE { return; }
    for (var n = 4u * team_index(ids); n < NEURONS; n += 4u * CREWS) {
        let rows = rows_of(base, first + n);
        var gates = vec4(0.0);
        var ups = vec4(0.0);
        for (var block = team_lane(ids); block < BLOCKS; block += TEAM) {
            let x = x_group(token * BLOCKS + block);
            gates += dots(rows, block, x);
            if PAIR { ups += dots(rows + WIDTH, block, x); }
        }
        gates = totals(ids, rows, token, gates);
        if PAIR { ups = totals(ids, rows + WIDTH, token, ups); }
        if team_lane(ids) == 0u {
            finish(job, first, n, gates.x, ups.x);
            finish(job, first, n + 1u, gates.y, ups.y);
            finish(job, first, n + 2u, gates.z, ups.z);
            finish(job, first, n + 3u, gates.w, ups.w);
        }
    }
    workgroupBarrier();
    write_products(ids, job, first);
}
