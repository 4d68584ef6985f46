// One token: rows of weights times the int8 copy of an activation that every workgroup norms and packs for itself.
// One team per ROWS_PER_TEAM rows. Reads every byte of the weights once, and the activation once per workgroup.
const STEPS: u32 = (BLOCKS + TEAM - 1u) / TEAM;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let first = (group_index(ids.group, ids.groups) * (WORKGROUP / TEAM) + team_index(ids)) * ROWS_PER_TEAM;
    prepare_x(ids);
    var sums: array<f32, ROWS_PER_TEAM>;
    for (var step = 0u; step < STEPS; step++) {
        let block = step * TEAM + team_lane(ids);
        if block < BLOCKS {
            let low = x_low(block);
            let high = x_high(block);
            let scale = x_scales[block];
            for (var r = 0u; r < ROWS_PER_TEAM; r++) {
                sums[r] += dot_block(load_block(min(first + r, ROWS - 1u), block), low, high, scale);
            }
        }
    }
    for (var r = 0u; r < ROWS_PER_TEAM; r++) {
        let row = first + r;
        let sum = team_sum(ids, sums[r]);
        if team_lane(ids) == 0u && row < ROWS { put(0u, row, sum * row_factor(row)); }
    }
}
