// f32 rows beside those of another layout.
@group(0) @binding(14) var<storage, read> floats: array<vec4<f32>>;
fn float4(row: u32, c4: u32) -> vec4<f32> { return floats[row * COLS4 + c4]; }
