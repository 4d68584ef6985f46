// out (+)= Σ factor * output over the jobs of a token, in order, and then the shared expert where it stands apart.
// Grid: columns along x, tokens along y. Reads JOBS (+ 1) rows of f32 per token.
@group(0) @binding(1) var<storage, read> outputs: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let i = ids.group.x * WORKGROUP + ids.local;
    let token = ids.group.y;
    if i >= ROWS { return; }
    var sum = 0.0;
    for (var job = token * JOBS; job < (token + 1u) * JOBS; job++) {
        sum += factors[job_place(job)] * outputs[job * OUT_STRIDE + i];
    }
    put_sum(token, i, sum + shared_output(token, i));
}
