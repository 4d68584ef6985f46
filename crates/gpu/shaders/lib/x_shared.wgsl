// The int8 copy of one activation row in workgroup memory, made by each workgroup for itself: normed first if NORM.
// Word k of a group is `x_words[k * BLOCKS + group]`, so that neighbouring lanes read neighbouring words.
var<workgroup> x_words: array<u32, 8u * BLOCKS>;
var<workgroup> x_scales: array<vec2<f32>, BLOCKS>;

const QUADS_PER_THREAD: u32 = (COLS4 + WORKGROUP - 1u) / WORKGROUP;

// Fills the copy; the whole workgroup calls it together. Eight neighbouring threads share a group of 32.
fn prepare_x(ids: Ids) {
    let thread = thread_index(ids);
    var values: array<vec4<f32>, QUADS_PER_THREAD>;
    var weights: array<vec4<f32>, QUADS_PER_THREAD>;
    var part = 0.0;
    for (var i = 0u; i < QUADS_PER_THREAD; i++) {
        let quad = min(i * WORKGROUP + thread, COLS4 - 1u);
        values[i] = select(vec4(0.0), x[quad], i * WORKGROUP + thread < COLS4);
        weights[i] = norm_weight4(quad);
        part += dot(values[i], values[i]);
    }
    var factor = 1.0;
    if NORM { factor = 1.0 / sqrt(group_sum(ids, part) / f32(WIDTH) + EPS); }
    for (var i = 0u; i < QUADS_PER_THREAD; i++) {
        let quad = i * WORKGROUP + thread;
        let v = values[i] * factor * weights[i];
        let size = abs(v);
        let top = octet_max(ids, max(max(size.x, size.y), max(size.z, size.w)));
        let inverse = select(0.0, 127.0 / top, top > 0.0);
        let codes = vec4<i32>(round(v * inverse));
        let sum = octet_sum(ids, codes.x + codes.y + codes.z + codes.w);
        if quad < COLS4 {
            x_words[(quad % 8u) * BLOCKS + quad / 8u] = pack4xI8(codes);
            if quad % 8u == 0u { x_scales[quad / 8u] = vec2(top / 127.0, top / 127.0 * f32(sum)); }
        }
    }
    workgroupBarrier();
}

fn x_low(block: u32) -> vec4<u32> {
    return vec4(x_words[block], x_words[BLOCKS + block], x_words[2u * BLOCKS + block], x_words[3u * BLOCKS + block]);
}

fn x_high(block: u32) -> vec4<u32> {
    let b = 4u * BLOCKS + block;
    return vec4(x_words[b], x_words[BLOCKS + b], x_words[2u * BLOCKS + b], x_words[3u * BLOCKS + b]);
}
