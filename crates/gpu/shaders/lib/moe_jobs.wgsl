// A job is a token with one of its experts: JOBS per token of the JOBS_STRIDE that `moe_route` chose, from FIRST_JOB on.
@group(0) @binding(5) var<storage, read> chosen: array<u32>;

// Where the expert and the factor of a job stand.
fn job_place(job: u32) -> u32 { return (job / JOBS) * JOBS_STRIDE + FIRST_JOB + job % JOBS; }
fn job_expert(job: u32) -> u32 { return chosen[job_place(job)] - FIRST_EXPERT; }
