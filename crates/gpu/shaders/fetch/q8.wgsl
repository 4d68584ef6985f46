// Sixteen int8 codes of a row; the row's scale multiplies finished sums.
struct Raw { codes: vec4<u32> }

// Weights at columns 16 c16 .. 16 c16 + 15.
fn fetch16(row: u32, c16: u32) -> Raw { return Raw(codes[row * (COLS4 / 4u) + c16]); }

// Weights 4 i .. 4 i + 3 of the sixteen.
fn raw4(raw: Raw, i: u32) -> vec4<f32> { return vec4<f32>(unpack4xI8(raw.codes[i])); }

// What a finished sum is multiplied by.
fn raw_factor(row: u32) -> f32 { return scales[row]; }
