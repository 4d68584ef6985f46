// As `lib/x_words.wgsl`, with one code per value, read for four neighbouring groups at a time; BLOCKS is a multiple of 4.
// Word k of groups 4 q .. 4 q + 3 is `x_words4[k * BLOCKS / 4 + q]`.
const REST: u32 = 0u;
const X_GROUPS: u32 = BLOCKS;

var<workgroup> x_words4: array<vec4<u32>, 2u * BLOCKS>;
var<workgroup> x_scales4: array<vec4<f32>, BLOCKS / 4u>;
var<workgroup> x_sums4: array<vec4<f32>, BLOCKS / 4u>;

fn x_four(k: u32, quarter: u32) -> vec4<u32> { return x_words4[k * (BLOCKS / 4u) + quarter]; }

fn put_word(k: u32, block: u32, word: u32) { x_words4[k * (BLOCKS / 4u) + block / 4u][block % 4u] = word; }

fn put_scale(block: u32, scale: vec2<f32>) {
    x_scales4[block / 4u][block % 4u] = scale.x;
    x_sums4[block / 4u][block % 4u] = scale.y;
}
