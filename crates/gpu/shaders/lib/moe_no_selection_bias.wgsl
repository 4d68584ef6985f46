// The scores alone choose.
const BIASED: bool = false;
fn bias_of_expert(expert: u32) -> f32 { return 0.0; }
