fn mask_of(index: u32) -> f32 { return 1.0; }
