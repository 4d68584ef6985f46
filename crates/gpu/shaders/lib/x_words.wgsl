// The int8 copy of one activation row in workgroup memory; the groups of its second codes, where it has them, follow
// those of the first ones. Word k of a group is `x_words[k * X_GROUPS + group]`, so that neighbouring lanes read
// neighbouring words.
const REST: u32 = BLOCKS;
const X_GROUPS: u32 = CODES * BLOCKS;

var<workgroup> x_words: array<u32, 8u * X_GROUPS>;
var<workgroup> x_scales: array<vec2<f32>, X_GROUPS>;

fn x_low(group: u32) -> vec4<u32> {
    return vec4(x_words[group], x_words[X_GROUPS + group], x_words[2u * X_GROUPS + group], x_words[3u * X_GROUPS + group]);
}

fn x_high(group: u32) -> vec4<u32> {
    let g = 4u * X_GROUPS + group;
    return vec4(x_words[g], x_words[X_GROUPS + g], x_words[2u * X_GROUPS + g], x_words[3u * X_GROUPS + g]);
}

fn x_scale(group: u32) -> vec2<f32> { return x_scales[group]; }

fn put_word(k: u32, group: u32, word: u32) { x_words[k * X_GROUPS + group] = word; }

fn put_scale(group: u32, scale: vec2<f32>) { x_scales[group] = scale; }
