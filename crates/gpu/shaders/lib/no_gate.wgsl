fn gate4(at: u32) -> vec4<f32> { return vec4(1.0); }
