// No overlay.
fn overlay4(row: u32, c4: u32) -> vec4<f32> { return vec4(0.0); }
