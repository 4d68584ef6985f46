// One token: rows of weights times an int8 activation that every workgroup has in its own memory.
// One team per row. Reads every byte of the weights once, and the activation once per workgroup.
@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    // Some first workgroups may have rows of floats.
    let group = group_index(ids.group, ids.groups);
    if group < FLOAT_GROUPS {
        float_rows(ids, group);
        return;
    }
    let row = (group - FLOAT_GROUPS) * (WORKGROUP / TEAM) + team_index(ids);
    let safe = min(row, ROWS - 1u);
    let lane = team_lane(ids);
    prepare_x(ids);
    let sum = team_sum(ids, dot_x(safe, lane));
    if lane == 0u && row < ROWS { put(0u, row, sum * row_factor(row)); }
}
