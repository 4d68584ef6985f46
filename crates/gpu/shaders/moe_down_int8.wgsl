// Σ factor * down(product) over the experts of a token, int8 products. One team per row (y), tokens along x.
// Reads each job's row once: tokens * JOBS rows per output row.

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let token = ids.group.x;
    let row = group_index(ids.group, ids.groups) * (WORKGROUP / TEAM) + team_index(ids);
    let safe = min(row, ROWS - 1u);
    var sum = 0.0;
    for (var item = team_lane(ids); item < JOBS * BLOCKS; item += TEAM) {
        let job = token * JOBS + item / BLOCKS;
        let base = expert_row(job_expert(job));
        if base != NONE {
            let x = x_group(token * JOBS * BLOCKS + item);
            let product = dot_group(load_block(base + safe, item % BLOCKS), x);
            sum += factors[job_place(job)] * row_factor(base + safe) * product;
        }
    }
    if OVERLAY {
        for (var job = token * JOBS; job < (token + 1u) * JOBS; job++) {
            let base = expert_row(job_expert(job));
            if base != NONE { sum += factors[job_place(job)] * overlay_dot(ids, base + safe, job); }
        }
    }
    let total = team_sum(ids, sum);
    if team_lane(ids) == 0u && row < ROWS { put_sum(token, row, total); }
}
