// Sorts the jobs of a step by expert and cuts each expert's into tiles of TILE. One workgroup per expert (x).
// Every workgroup reads all jobs' experts. order[place] = job; tiles[0].x is their number, then each is
// (expert, first place, jobs).
@group(0) @binding(2) var<storage, read_write> order: array<u32>;
@group(0) @binding(3) var<storage, read_write> tiles: array<vec4<u32>>;

var<workgroup> counts: array<atomic<u32>, EXPERTS>;
var<workgroup> shares: array<u32, WORKGROUP>;

fn tiles_for(count: u32) -> u32 { return (count + TILE - 1u) / TILE; }

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let expert = ids.group.x;
    let jobs = step_rows() * JOBS;
    for (var e = ids.local; e < EXPERTS; e += WORKGROUP) { atomicStore(&counts[e], 0u); }
    workgroupBarrier();
    let share = (jobs + WORKGROUP - 1u) / WORKGROUP;
    let first = min(ids.local * share, jobs);
    let end = min(first + share, jobs);
    var own = 0u;
    for (var job = first; job < end; job++) {
        let e = job_expert(job);
        atomicAdd(&counts[e], 1u);
        own += u32(e == expert);
    }
    shares[ids.local] = own;
    workgroupBarrier();
    var jobs_before = 0u;
    var tiles_before = 0u;
    for (var e = ids.local; e < expert; e += WORKGROUP) {
        let count = atomicLoad(&counts[e]);
        jobs_before += count;
        tiles_before += tiles_for(count);
    }
    // Exact: the numbers are far below 2^24.
    let start = u32(group_sum(ids, f32(jobs_before)));
    let first_tile = u32(group_sum(ids, f32(tiles_before)));
    let count = atomicLoad(&counts[expert]);
    if own > 0u {
        var place = start;
        for (var i = 0u; i < ids.local; i++) { place += shares[i]; }
        for (var job = first; job < end; job++) {
            if job_expert(job) == expert {
                order[place] = job;
                place++;
            }
        }
    }
    for (var t = ids.local; t < tiles_for(count); t += WORKGROUP) {
        tiles[1u + first_tile + t] = vec4(expert, start + t * TILE, min(TILE, count - t * TILE), 0u);
    }
    if ids.local == 0u && expert == EXPERTS - 1u { tiles[0] = vec4(first_tile + tiles_for(count), 0u, 0u, 0u); }
}
