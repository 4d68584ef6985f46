// out += overlay · x. One team per row and token; tokens along x.

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups) * (WORKGROUP / TEAM) + team_index(ids);
    let token = ids.group.x;
    let sum = team_sum(ids, overlay_dot(ids, min(row, ROWS - 1u), token));
    if team_lane(ids) == 0u && row < ROWS && token < live_tokens() { put(token, row, sum); }
}
