// Products of gate and up are kept as f32.
alias Kept = f32;
fn kept(value: f32) -> f32 { return value; }
