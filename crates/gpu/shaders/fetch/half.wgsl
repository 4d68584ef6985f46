// Sixteen f16 weights of a row.
struct Raw { a: vec2<u32>, b: vec2<u32>, c: vec2<u32>, d: vec2<u32> }

// Weights at columns 16 c16 .. 16 c16 + 15.
fn fetch16(row: u32, c16: u32) -> Raw {
    let at = row * COLS4 + 4u * c16;
    return Raw(codes[at], codes[at + 1u], codes[at + 2u], codes[at + 3u]);
}

// Weights 4 i .. 4 i + 3 of the sixteen.
fn raw4(raw: Raw, i: u32) -> vec4<f32> {
    var words = raw.d;
    if i == 0u { words = raw.a; } else if i == 1u { words = raw.b; } else if i == 2u { words = raw.c; }
    return vec4(unpack2x16float(words.x), unpack2x16float(words.y));
}

// What a finished sum is multiplied by.
fn raw_factor(row: u32) -> f32 { return 1.0; }
