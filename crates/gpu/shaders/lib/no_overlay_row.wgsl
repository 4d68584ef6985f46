// No overlay.
fn overlay_row(row: u32, x_row: u32) -> f32 { return 0.0; }
