// Products of gate and up are kept as f16, limited to what it holds.
alias Kept = f16;
fn kept(value: f32) -> f16 { return f16(clamp(value, -65504.0, 65504.0)); }
