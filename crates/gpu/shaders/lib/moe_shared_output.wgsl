// The shared expert's output, [tokens, OUT_STRIDE], times its factor.
@group(0) @binding(4) var<storage, read> shared_outputs: array<f32>;
fn shared_output(token: u32, i: u32) -> f32 {
    return factors[(token + 1u) * JOBS_STRIDE - 1u] * shared_outputs[token * OUT_STRIDE + i];
}
