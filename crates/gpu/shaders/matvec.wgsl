// Rows of weights times f32 activations. One team per row, TOKENS tokens per pass over the row; tokens along x.
// Reads every byte of the weights once per TOKENS tokens.

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups) * (WORKGROUP / TEAM) + team_index(ids);
    let safe = min(row, ROWS - 1u);
    let first = ids.group.x * TOKENS;
    var sums: array<f32, TOKENS>;
    for (var c4 = team_lane(ids); c4 < COLS4; c4 += 4u * TEAM) {
        // Four are on their way at a time; beyond the end the last column, which counts nothing.
        let last = COLS4 - 1u;
        let at = min(vec4(c4, c4 + TEAM, c4 + 2u * TEAM, c4 + 3u * TEAM), vec4(last));
        let wa = weight4(safe, at.x);
        let wb = weight4(safe, at.y) * f32(c4 + TEAM < COLS4);
        let wc = weight4(safe, at.z) * f32(c4 + 2u * TEAM < COLS4);
        let wd = weight4(safe, at.w) * f32(c4 + 3u * TEAM < COLS4);
        for (var t = 0u; t < TOKENS; t++) {
            let row_of_x = (first + t) * X_STRIDE4;
            sums[t] += dot(wa, x[row_of_x + at.x]) + dot(wb, x[row_of_x + at.y]) + dot(wc, x[row_of_x + at.z])
                + dot(wd, x[row_of_x + at.w]);
        }
    }
    for (var t = 0u; t < TOKENS; t++) {
        let sum = team_sum(ids, sums[t] + overlay_dot(ids, safe, first + t));
        if team_lane(ids) == 0u && row < ROWS && first + t < live_tokens() { put(first + t, row, sum); }
    }
}
