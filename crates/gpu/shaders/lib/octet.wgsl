// int8 codes of a group of 32 values by eight neighbouring threads, a quad each: code = round(value / scale), where
// scale = top / 127 and `top` is no smaller than any of the 32. All threads of the workgroup call these together.

// A thread's word, the group's scale and scale times sum, and what the codes leave of the thread's values.
struct Octet { word: u32, scale: vec2<f32>, rest: vec4<f32> }

// The largest magnitude of the group.
fn octet_top(ids: Ids, value: vec4<f32>) -> f32 {
    let size = abs(value);
    return octet_max(ids, max(max(size.x, size.y), max(size.z, size.w)));
}

fn pack_octet(ids: Ids, value: vec4<f32>, top: f32) -> Octet {
    let inverse = select(0.0, 127.0 / top, top > 1e-30);
    let codes = vec4<i32>(round(value * inverse));
    let scale = top / 127.0;
    let sum = octet_sum(ids, codes.x + codes.y + codes.z + codes.w);
    return Octet(pack4xI8(codes), vec2(scale, scale * f32(sum)), value - scale * vec4<f32>(codes));
}

// Codes of what others left, which is half a step at most.
fn pack_rest(ids: Ids, first: Octet) -> Octet { return pack_octet(ids, first.rest, 0.5 * first.scale.x); }
