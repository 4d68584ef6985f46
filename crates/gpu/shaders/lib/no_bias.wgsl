// No biases.
fn bias_of(row: u32) -> f32 { return 0.0; }
