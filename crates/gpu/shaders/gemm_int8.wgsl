// Tokens times rows of weights, int8 activations in groups of 32: exact inside a group. A workgroup makes a tile of 64
// tokens (x) by 64 rows (y) in steps of two groups; each of its 256 threads holds 4 by 4 sums. Half the threads bring
// activations, half bring weights, while the last step's are multiplied. Reads the activations once per 64 rows and the
// weights once per 64 tokens.
@group(0) @binding(7) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> x_scales: array<vec2<f32>>;

const TILE: u32 = 64u;
const STEPS: u32 = (BLOCKS + 1u) / 2u;

// [group][token] and [group][row].
var<workgroup> x_low: array<vec4<u32>, 2u * TILE>;
var<workgroup> x_high: array<vec4<u32>, 2u * TILE>;
var<workgroup> x_scale: array<vec2<f32>, 2u * TILE>;
var<workgroup> w_tile: array<Block, 2u * TILE>;

fn put_sum(token: u32, row: u32, last_token: u32, sum: f32) {
    if token <= last_token && row < ROWS { put(token, row, sum * row_factor(row)); }
}

// Sums of four tokens, `place` .. `place + 48`, with one row's group.
fn four_tokens(w: Block, place: u32) -> vec4<f32> {
    return vec4(dot_block(w, x_low[place], x_high[place], x_scale[place]),
        dot_block(w, x_low[place + 16u], x_high[place + 16u], x_scale[place + 16u]),
        dot_block(w, x_low[place + 32u], x_high[place + 32u], x_scale[place + 32u]),
        dot_block(w, x_low[place + 48u], x_high[place + 48u], x_scale[place + 48u]));
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let last_token = live_tokens() - 1u;
    let first_token = ids.group.x * TILE;
    let first_row = group_index(ids.group, ids.groups) * TILE;
    let brings_x = ids.local < 2u * TILE;
    // What this thread brings: a line of the tile and a group of the step.
    let place = ids.local % (2u * TILE);
    let group = place / TILE;
    let x_from = min(first_token + place % TILE, last_token) * BLOCKS;
    let w_row = min(first_row + place % TILE, ROWS - 1u);
    let tx = ids.local % 16u;
    let ty = ids.local / 16u;
    var sums0: vec4<f32>;
    var sums1: vec4<f32>;
    var sums2: vec4<f32>;
    var sums3: vec4<f32>;
    var low: vec4<u32>;
    var high: vec4<u32>;
    var scale: vec2<f32>;
    var w: Block;
    let first_block = min(group, BLOCKS - 1u);
    if brings_x {
        low = x_codes[2u * (x_from + first_block)];
        high = x_codes[2u * (x_from + first_block) + 1u];
        scale = x_scales[x_from + first_block];
    } else {
        w = load_block(w_row, first_block);
    }
    for (var step_index = 0u; step_index < STEPS; step_index++) {
        if brings_x {
            x_low[place] = low;
            x_high[place] = high;
            // The second group of the last step may be none.
            x_scale[place] = select(vec2(0.0), scale, 2u * step_index + group < BLOCKS);
        } else {
            w_tile[place] = w;
        }
        workgroupBarrier();
        let next = min(2u * step_index + 2u + group, BLOCKS - 1u);
        if brings_x {
            low = x_codes[2u * (x_from + next)];
            high = x_codes[2u * (x_from + next) + 1u];
            scale = x_scales[x_from + next];
        } else {
            w = load_block(w_row, next);
        }
        for (var g = 0u; g < 2u * TILE; g += TILE) {
            sums0 += four_tokens(w_tile[g + tx], g + ty);
            sums1 += four_tokens(w_tile[g + tx + 16u], g + ty);
            sums2 += four_tokens(w_tile[g + tx + 32u], g + ty);
            sums3 += four_tokens(w_tile[g + tx + 48u], g + ty);
        }
        workgroupBarrier();
    }
    let token = first_token + ty;
    let row = first_row + tx;
    for (var t = 0u; t < 4u; t++) {
        put_sum(token + 16u * t, row, last_token, sums0[t]);
        put_sum(token + 16u * t, row + 16u, last_token, sums1[t]);
        put_sum(token + 16u * t, row + 32u, last_token, sums2[t]);
        put_sum(token + 16u * t, row + 48u, last_token, sums3[t]);
    }
}
