// The ring after a span: its last KERNEL - 1 rows, or fewer after what is left of the old ones.
fn move_ring(job: Job, quad: u32) {
    for (var r = 0u; r + 1u < KERNEL; r++) {
        let older = r + job.rows;
        let at = job.base + r * CHANNELS + 4u * quad;
        var x: vec4<f32>;
        if older + 1u < KERNEL {
            let old = job.base + older * CHANNELS + 4u * quad;
            x = vec4(state[old], state[old + 1u], state[old + 2u], state[old + 3u]);
        } else {
            x = qkv[(job.first_row + older + 1u - KERNEL) * QKV_STRIDE4 + quad];
        }
        state[at] = x.x;
        state[at + 1u] = x.y;
        state[at + 2u] = x.z;
        state[at + 3u] = x.w;
    }
}
