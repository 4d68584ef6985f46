// Rows of weights times int8 activations. One team per row, TOKENS tokens per pass over the row; tokens along x.
// Reads every byte of the weights once per TOKENS tokens.
const STEPS: u32 = (BLOCKS + TEAM - 1u) / TEAM;
const WHOLE: bool = BLOCKS % TEAM == 0u;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups) * (WORKGROUP / TEAM) + team_index(ids);
    let safe = min(row, ROWS - 1u);
    let first = ids.group.x * TOKENS;
    let copy = select(0u, part_of(safe), SETS);
    let base = (copy * CODES * SET_ROWS + first) * BLOCKS;
    var sums: array<f32, TOKENS>;
    // A constant number of steps, so that the compiler may unroll them.
    for (var step = 0u; step < STEPS; step++) {
        let block = step * TEAM + team_lane(ids);
        if WHOLE || block < BLOCKS {
            let w = load_block(safe, block);
            for (var t = 0u; t < TOKENS; t++) {
                sums[t] += dot_group(w, x_group(base + t * BLOCKS + block));
            }
        }
    }
    let factor = row_factor(safe);
    for (var t = 0u; t < TOKENS; t++) {
        let sum = team_sum(ids, sums[t] * factor + overlay_dot(ids, safe, first + t));
        if team_lane(ids) == 0u && row < ROWS && first + t < live_tokens() { put(first + t, row, sum); }
    }
}
