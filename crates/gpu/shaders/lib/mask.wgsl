// 1 for what is on, 0 for what a task switches off.
@group(0) @binding(3) var<storage, read> mask: array<f32>;
fn mask_of(index: u32) -> f32 { return mask[index]; }
