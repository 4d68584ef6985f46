// int8 activations in groups of 32: code = round(x / scale), scale = absmax / 127.
struct Packed { low: vec4<u32>, high: vec4<u32>, scale: vec2<f32> }

// Packs 32 values; `scale` is the scale and the scale times the sum of the codes.
fn pack_int8(x: array<vec4<f32>, 8>) -> Packed {
    var values = x;
    var top = vec4(0.0);
    for (var i = 0u; i < 8u; i++) { top = max(top, abs(values[i])); }
    let largest = max(max(top.x, top.y), max(top.z, top.w));
    let scale = largest / 127.0;
    let inverse = select(0.0, 127.0 / largest, largest > 0.0);
    var words: array<u32, 8>;
    var sum = 0;
    for (var i = 0u; i < 8u; i++) {
        let codes = vec4<i32>(round(values[i] * inverse));
        sum += codes.x + codes.y + codes.z + codes.w;
        words[i] = pack4xI8(codes);
    }
    return Packed(vec4(words[0], words[1], words[2], words[3]), vec4(words[4], words[5], words[6], words[7]),
        vec2(scale, scale * f32(sum)));
}
