// The int8 copy of one activation row, brought to workgroup memory.
// Word k of a group is `x_words[k * BLOCKS + group]`, so that neighbouring lanes read neighbouring words.
@group(0) @binding(7) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> packed_scales: array<vec2<f32>>;

var<workgroup> x_words: array<u32, 8u * BLOCKS>;
var<workgroup> x_scales: array<vec2<f32>, BLOCKS>;

fn put_words(i: u32, four: vec4<u32>) {
    let at = (i % 2u) * 4u * BLOCKS + i / 2u;
    x_words[at] = four.x;
    x_words[at + BLOCKS] = four.y;
    x_words[at + 2u * BLOCKS] = four.z;
    x_words[at + 3u * BLOCKS] = four.w;
}

// Fills the copy; the whole workgroup calls it together. Two loads are on their way at a time.
fn prepare_x(ids: Ids) {
    let end = 2u * BLOCKS;
    for (var i = ids.local; i < end; i += 2u * WORKGROUP) {
        let a = x_codes[i];
        let b = x_codes[min(i + WORKGROUP, end - 1u)];
        put_words(i, a);
        if i + WORKGROUP < end { put_words(i + WORKGROUP, b); }
    }
    for (var g = ids.local; g < BLOCKS; g += WORKGROUP) { x_scales[g] = packed_scales[g]; }
    workgroupBarrier();
}

fn x_low(block: u32) -> vec4<u32> {
    return vec4(x_words[block], x_words[BLOCKS + block], x_words[2u * BLOCKS + block], x_words[3u * BLOCKS + block]);
}

fn x_high(block: u32) -> vec4<u32> {
    let b = 4u * BLOCKS + block;
    return vec4(x_words[b], x_words[BLOCKS + b], x_words[2u * BLOCKS + b], x_words[3u * BLOCKS + b]);
}
