// act(gate x) * (up x) of the chosen experts, f32 activations. A workgroup makes NEURONS neighbouring neurons of one
// job; neurons along x, jobs along y. Reads the rows of each job's gate and up once: jobs * 2 * WIDTH rows.

fn dots(rows: vec4<u32>, c4: u32, values: vec4<f32>) -> vec4<f32> {
    return vec4(dot(weight4(rows.x, c4), values), dot(weight4(rows.y, c4), values), dot(weight4(rows.z, c4), values),
        dot(weight4(rows.w, c4), values));
}

// Sums of a team's lanes, with what the overlays of the rows add.
fn totals(ids: Ids, rows: vec4<u32>, token: u32, parts: vec4<f32>) -> vec4<f32> {
    let x = team_sum(ids, parts.x + overlay_dot(ids, rows.x, token));
    let y = team_sum(ids, parts.y + overlay_dot(ids, rows.y, token));
    let z = team_sum(ids, parts.z + overlay_dot(ids, rows.z, token));
    let w = team_sum(ids, parts.w + overlay_dot(ids, rows.w, token));
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
        for (var c4 = team_lane(ids); c4 < COLS4; c4 += TEAM) {
            let values = x[token * X_STRIDE4 + c4];
            gates += dots(rows, c4, values);
            if PAIR { ups += dots(rows + WIDTH, c4, values); }
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
