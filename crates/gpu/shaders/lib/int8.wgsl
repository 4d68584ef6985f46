// int8 activations in groups of 32: code = round(x / scale), scale = top / 127, where `top` is no smaller than any of
// the 32 magnitudes.

// Codes, scale and scale times sum, and what the codes leave.
struct Packed { low: vec4<u32>, high: vec4<u32>, scale: vec2<f32>, rest: array<vec4<f32>, 8> }

fn top_of(x: array<vec4<f32>, 8>) -> f32 {
    var values = x;
    var top = vec4(0.0);
    for (var i = 0u; i < 8u; i++) { top = max(top, abs(values[i])); }
    return max(max(top.x, top.y), max(top.z, top.w));
}

fn pack_int8(x: array<vec4<f32>, 8>, top: f32) -> Packed {
    var rest = x;
    let scale = top / 127.0;
    let inverse = select(0.0, 127.0 / top, top > 1e-30);
    var words: array<u32, 8>;
    var sum = 0;
    for (var i = 0u; i < 8u; i++) {
        let codes = vec4<i32>(round(rest[i] * inverse));
        sum += codes.x + codes.y + codes.z + codes.w;
        words[i] = pack4xI8(codes);
        rest[i] -= scale * vec4<f32>(codes);
    }
    return Packed(vec4(words[0], words[1], words[2], words[3]), vec4(words[4], words[5], words[6], words[7]),
        vec2(scale, scale * f32(sum)), rest);
}
