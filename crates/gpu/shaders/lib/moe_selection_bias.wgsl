// Added to the scores for the choice only.
@group(0) @binding(3) var<storage, read> selection_bias: array<f32>;
const BIASED: bool = true;
fn bias_of_expert(expert: u32) -> f32 { return selection_bias[expert]; }
