const QK_NORM: bool = false;
fn q_weight(i: u32) -> f32 { return 1.0; }
fn k_weight(i: u32) -> f32 { return 1.0; }
