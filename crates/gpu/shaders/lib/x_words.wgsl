// The int8 copy of one activation row in workgroup memory.
// Word k of a group is `x_words[k * BLOCKS + group]`, so that neighbouring lanes read neighbouring words.
var<workgroup> x_words: array<u32, 8u * BLOCKS>;
var<workgroup> x_scales: array<vec2<f32>, BLOCKS>;

fn x_low(block: u32) -> vec4<u32> {
    return vec4(x_words[block], x_words[BLOCKS + block], x_words[2u * BLOCKS + block], x_words[3u * BLOCKS + block]);
}

fn x_high(block: u32) -> vec4<u32> {
    let b = 4u * BLOCKS + block;
    return vec4(x_words[b], x_words[BLOCKS + b], x_words[2u * BLOCKS + b], x_words[3u * BLOCKS + b]);
}

fn put_word(k: u32, block: u32, word: u32) { x_words[k * BLOCKS + block] = word; }

fn put_scale(block: u32, scale: vec2<f32>) { x_scales[block] = scale; }
