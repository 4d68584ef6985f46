// Rows of weights times f32 activations. One team per row, TOKENS tokens per pass over the row; tokens along x.
// Reads every byte of the weights once per TOKENS tokens.

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups) * (WORKGROUP / TEAM) + team_index(ids);
    let safe = min(row, ROWS - 1u);
    let first = ids.group.x * TOKENS;
    var sums: array<f32, TOKENS>;
    for (var c4 = team_lane(ids); c4 < COLS4; c4 += TEAM) {
        let w = weight4(safe, c4);
        for (var t = 0u; t < TOKENS; t++) { sums[t] += dot(w, x[(first + t) * X_STRIDE4 + c4]); }
    }
    for (var t = 0u; t < TOKENS; t++) {
        let sum = team_sum(ids, sums[t] + overlay_dot(ids, safe, first + t));
        if team_lane(ids) == 0u && row < ROWS && first + t < live_tokens() { put(first + t, row, sum); }
    }
}
