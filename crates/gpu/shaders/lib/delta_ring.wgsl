// The ring after a span: its last KERNEL - 1 rows, or fewer after what is left of the old ones.
fn move_ring(job: Job, quad: u32) {
    for (var r = 0u; r + 1u < KERNEL; r++) {
        let older = r + job.rows;
        var x: vec4<f32>;
        if older + 1u < KERNEL {
            x = state[job.base + older * (CHANNELS / 4u) + quad];
        } else {
            x = qkv[(job.first_row + older + 1u - KERNEL) * QKV_STRIDE4 + quad];
        }
        state[job.base + r * (CHANNELS / 4u) + quad] = x;
    }
}
