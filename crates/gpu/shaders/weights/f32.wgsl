// f32 rows [rows, COLS4] of vec4.
@group(0) @binding(10) var<storage, read> codes: array<vec4<f32>>;

// Weights at columns 4 c4 .. 4 c4 + 3.
fn weight4(row: u32, c4: u32) -> vec4<f32> { return codes[row * COLS4 + c4]; }
