// int8 rows [rows, COLS4 / 4] of 16 codes, f32 row scales. 1 byte read per weight.
@group(0) @binding(10) var<storage, read> codes: array<vec4<u32>>;
@group(0) @binding(11) var<storage, read> scales: array<f32>;

// Weights at columns 4 c4 .. 4 c4 + 3.
fn weight4(row: u32, c4: u32) -> vec4<f32> {
    let word = codes[row * (COLS4 / 4u) + c4 / 4u][c4 % 4u];
    return vec4<f32>(unpack4xI8(word)) * scales[row];
}
