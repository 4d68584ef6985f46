// The shared expert counts in full.
const GATED: bool = false;
fn shared_part(ids: Ids, token: u32) -> f32 { return 0.0; }
fn shared_factor(sum: f32) -> f32 { return 1.0; }
