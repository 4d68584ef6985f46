// Biases of all stacked rows.
@group(0) @binding(6) var<storage, read> bias: array<f32>;
fn bias_of(row: u32) -> f32 { return bias[row]; }
