// Norm weights of a query head and of a key head.
@group(0) @binding(7) var<storage, read> q_norm: array<f32>;
@group(0) @binding(10) var<storage, read> k_norm: array<f32>;
const QK_NORM: bool = true;
fn q_weight(i: u32) -> f32 { return q_norm[i]; }
fn k_weight(i: u32) -> f32 { return k_norm[i]; }
