// Teams of TEAM neighbouring threads, sums through workgroup memory.
// Every thread of the workgroup must call these together.
struct Ids {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
}

var<workgroup> team_scratch: array<f32, WORKGROUP>;

fn team_index(ids: Ids) -> u32 { return ids.local / TEAM; }
fn team_lane(ids: Ids) -> u32 { return ids.local % TEAM; }

fn tree_sum(local: u32, lane: u32, size: u32, value: f32) -> f32 {
    team_scratch[local] = value;
    workgroupBarrier();
    for (var step = size / 2u; step > 0u; step /= 2u) {
        if lane < step { team_scratch[local] += team_scratch[local + step]; }
        workgroupBarrier();
    }
    let total = team_scratch[local - lane];
    workgroupBarrier();
    return total;
}

// Sum over the team, given to each of its threads.
fn team_sum(ids: Ids, value: f32) -> f32 { return tree_sum(ids.local, team_lane(ids), TEAM, value); }

// Sum over the workgroup, given to each of its threads.
fn group_sum(ids: Ids, value: f32) -> f32 { return tree_sum(ids.local, ids.local, WORKGROUP, value); }

fn tree_max(local: u32, lane: u32, size: u32, value: f32) -> f32 {
    team_scratch[local] = value;
    workgroupBarrier();
    for (var step = size / 2u; step > 0u; step /= 2u) {
        if lane < step { team_scratch[local] = max(team_scratch[local], team_scratch[local + step]); }
        workgroupBarrier();
    }
    let found = team_scratch[local - lane];
    workgroupBarrier();
    return found;
}

// Maximum over the team, given to each of its threads.
fn team_max(ids: Ids, value: f32) -> f32 { return tree_max(ids.local, team_lane(ids), TEAM, value); }

// Maximum over the workgroup, given to each of its threads.
fn group_max(ids: Ids, value: f32) -> f32 { return tree_max(ids.local, ids.local, WORKGROUP, value); }

// Maximum over eight neighbouring threads, given to each of them.
fn octet_max(ids: Ids, value: f32) -> f32 {
    team_scratch[ids.local] = value;
    workgroupBarrier();
    let first = ids.local & ~7u;
    var top = team_scratch[first];
    for (var i = 1u; i < 8u; i++) { top = max(top, team_scratch[first + i]); }
    workgroupBarrier();
    return top;
}

// Sum over eight neighbouring threads, given to each of them. Exact: at most 32 * 127 each.
fn octet_sum(ids: Ids, value: i32) -> i32 { return i32(octet_sum_f32(ids, f32(value))); }

// Sum over eight neighbouring threads, given to each of them.
fn octet_sum_f32(ids: Ids, value: f32) -> f32 {
    team_scratch[ids.local] = value;
    workgroupBarrier();
    let first = ids.local & ~7u;
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) { sum += team_scratch[first + i]; }
    workgroupBarrier();
    return sum;
}

// Position of a thread in the order in which octets and teams follow each other.
fn thread_index(ids: Ids) -> u32 { return ids.local; }
