// Sixteen weights of a row in whatever layout, decoded when they are fetched.
struct Raw { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

// Weights at columns 16 c16 .. 16 c16 + 15.
fn fetch16(row: u32, c16: u32) -> Raw {
    let c4 = 4u * c16;
    return Raw(weight4(row, c4), weight4(row, c4 + 1u), weight4(row, c4 + 2u), weight4(row, c4 + 3u));
}

// Weights 4 i .. 4 i + 3 of the sixteen.
fn raw4(raw: Raw, i: u32) -> vec4<f32> {
    if i == 0u { return raw.a; }
    if i == 1u { return raw.b; }
    if i == 2u { return raw.c; }
    return raw.d;
}

// What a finished sum is multiplied by.
fn raw_factor(row: u32) -> f32 { return 1.0; }
