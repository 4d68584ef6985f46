// Teams of one subgroup, whose size is TEAM.
// Every thread of the workgroup must call these together.
struct Ids {
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(subgroup_invocation_id) lane: u32,
}

const TEAMS: u32 = WORKGROUP / TEAM;
var<workgroup> team_scratch: array<f32, TEAMS>;

fn team_index(ids: Ids) -> u32 { return ids.subgroup; }
fn team_lane(ids: Ids) -> u32 { return ids.lane; }

// Sum over the team, given to each of its threads.
fn team_sum(ids: Ids, value: f32) -> f32 { return subgroupAdd(value); }

// Maximum over the team, given to each of its threads.
fn team_max(ids: Ids, value: f32) -> f32 { return subgroupMax(value); }

// Sum over the workgroup, given to each of its threads.
fn group_sum(ids: Ids, value: f32) -> f32 {
    let part = subgroupAdd(value);
    if ids.lane == 0u { team_scratch[ids.subgroup] = part; }
    workgroupBarrier();
    var total = 0.0;
    if TEAMS <= TEAM {
        // Every subgroup adds up all parts.
        total = subgroupAdd(select(0.0, team_scratch[min(ids.lane, TEAMS - 1u)], ids.lane < TEAMS));
    } else {
        for (var i = 0u; i < TEAMS; i++) { total += team_scratch[i]; }
    }
    workgroupBarrier();
    return total;
}

// Maximum over the workgroup, given to each of its threads.
fn group_max(ids: Ids, value: f32) -> f32 {
    let part = subgroupMax(value);
    if ids.lane == 0u { team_scratch[ids.subgroup] = part; }
    workgroupBarrier();
    var found = team_scratch[0];
    if TEAMS <= TEAM {
        found = subgroupMax(team_scratch[min(ids.lane, TEAMS - 1u)]);
    } else {
        for (var i = 1u; i < TEAMS; i++) { found = max(found, team_scratch[i]); }
    }
    workgroupBarrier();
    return found;
}

// Maximum over eight neighbouring threads, given to each of them.
fn octet_max(ids: Ids, value: f32) -> f32 {
    var top = max(value, subgroupShuffleXor(value, 1u));
    top = max(top, subgroupShuffleXor(top, 2u));
    return max(top, subgroupShuffleXor(top, 4u));
}

// Sum over eight neighbouring threads, given to each of them.
fn octet_sum(ids: Ids, value: i32) -> i32 {
    var sum = value + subgroupShuffleXor(value, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    return sum + subgroupShuffleXor(sum, 4u);
}

// Sum over eight neighbouring threads, given to each of them.
fn octet_sum_f32(ids: Ids, value: f32) -> f32 {
    var sum = value + subgroupShuffleXor(value, 1u);
    sum += subgroupShuffleXor(sum, 2u);
    return sum + subgroupShuffleXor(sum, 4u);
}

// Position of a thread in the order in which octets and teams follow each other.
fn thread_index(ids: Ids) -> u32 { return ids.subgroup * TEAM + ids.lane; }
