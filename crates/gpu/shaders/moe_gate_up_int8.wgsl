// act(gate x) * (up x) of the chosen experts, int8 activations. A workgroup makes NEURONS neighbouring neurons of one
// job; neurons along x, jobs along y. Reads the rows of each job's gate and up once: jobs * 2 * WIDTH rows.
@group(0) @binding(7) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> x_scales: array<vec2<f32>>;

fn dots(rows: vec4<u32>, block: u32, low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>) -> vec4<f32> {
    // All four are on their way before the first is used.
    let a = load_block(rows.x, block);
    let b = load_block(rows.y, block);
    let c = load_block(rows.z, block);
    let d = load_block(rows.w, block);
    return vec4(dot_block(a, low, high, scale), dot_block(b, low, high, scale), dot_block(c, low, high, scale),
        dot_block(d, low, high, scale));
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
            let at = token * BLOCKS + block;
            let low = x_codes[2u * at];
            let high = x_codes[2u * at + 1u];
            let scale = x_scales[at];
            gates += dots(rows, block, low, high, scale);
            if PAIR { ups += dots(rows + WIDTH, block, low, high, scale); }
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
