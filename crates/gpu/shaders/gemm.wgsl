// Tokens times rows of weights, f32. A workgroup makes a tile of 128 tokens (x) by 128 rows (y) in steps of 16 columns;
// each of its 256 threads holds 8 by 8 sums. Half the threads bring activations, half bring weights, while the last
// step's are multiplied. Reads the activations once per 128 rows and the weights once per 128 tokens.
const TILE: u32 = 128u;
const LINE4: u32 = TILE / 4u;
const STEPS: u32 = 2u * BLOCKS;

// [column][token] and [column][row].
var<workgroup> x_tile: array<vec4<f32>, 16u * LINE4>;
var<workgroup> w_tile: array<vec4<f32>, 16u * LINE4>;

fn stage_x(line: u32, c4: u32, value: vec4<f32>) {
    let at = 4u * c4 * LINE4 + line / 4u;
    x_tile[at][line % 4u] = value.x;
    x_tile[at + LINE4][line % 4u] = value.y;
    x_tile[at + 2u * LINE4][line % 4u] = value.z;
    x_tile[at + 3u * LINE4][line % 4u] = value.w;
}

fn stage_w(line: u32, c4: u32, value: vec4<f32>) {
    let at = 4u * c4 * LINE4 + line / 4u;
    w_tile[at][line % 4u] = value.x;
    w_tile[at + LINE4][line % 4u] = value.y;
    w_tile[at + 2u * LINE4][line % 4u] = value.z;
    w_tile[at + 3u * LINE4][line % 4u] = value.w;
}

// Writes the sums of a token with rows `row` .. `row + 3`.
fn put4(token: u32, row: u32, last_token: u32, sums: vec4<f32>) {
    if token > last_token { return; }
    if row < ROWS { put(token, row, sums.x * raw_factor(row)); }
    if row + 1u < ROWS { put(token, row + 1u, sums.y * raw_factor(row + 1u)); }
    if row + 2u < ROWS { put(token, row + 2u, sums.z * raw_factor(row + 2u)); }
    if row + 3u < ROWS { put(token, row + 3u, sums.w * raw_factor(row + 3u)); }
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let last_token = live_tokens() - 1u;
    let first_token = ids.group.x * TILE;
    let first_row = group_index(ids.group, ids.groups) * TILE;
    let brings_x = ids.local < TILE;
    let line = ids.local % TILE;
    let x_from = min(first_token + line, last_token) * X_STRIDE4;
    let w_row = min(first_row + line, ROWS - 1u);
    // Quads 0 .. 15 are the first half of the tile, 16 .. 31 the second: 16 threads read 256 bytes in a row.
    let tx = ids.local / 16u;
    let ty = ids.local % 16u;
    var low: array<vec4<f32>, 8>;
    var high: array<vec4<f32>, 8>;
    var x0: vec4<f32>;
    var x1: vec4<f32>;
    var x2: vec4<f32>;
    var x3: vec4<f32>;
    var raw: Raw;
    if brings_x {
        x0 = x[x_from];
        x1 = x[x_from + 1u];
        x2 = x[x_from + 2u];
        x3 = x[x_from + 3u];
    } else {
        raw = fetch16(w_row, 0u);
    }
    for (var step_index = 0u; step_index < STEPS; step_index++) {
        if brings_x {
            stage_x(line, 0u, x0);
            stage_x(line, 1u, x1);
            stage_x(line, 2u, x2);
            stage_x(line, 3u, x3);
        } else {
            stage_w(line, 0u, raw4(raw, 0u));
            stage_w(line, 1u, raw4(raw, 1u));
            stage_w(line, 2u, raw4(raw, 2u));
            stage_w(line, 3u, raw4(raw, 3u));
        }
        workgroupBarrier();
        // The last step fetches its own inputs again.
        let next = min(step_index + 1u, STEPS - 1u);
        if brings_x {
            x0 = x[x_from + 4u * next];
            x1 = x[x_from + 4u * next + 1u];
            x2 = x[x_from + 4u * next + 2u];
            x3 = x[x_from + 4u * next + 3u];
        } else {
            raw = fetch16(w_row, next);
        }
        for (var k = 0u; k < 16u; k++) {
            let at = k * LINE4;
            let wl = w_tile[at + ty];
            let wh = w_tile[at + 16u + ty];
            let xl = x_tile[at + tx];
            let xh = x_tile[at + 16u + tx];
            low[0] += wl * xl.x;
            high[0] += wh * xl.x;
            low[1] += wl * xl.y;
            high[1] += wh * xl.y;
            low[2] += wl * xl.z;
            high[2] += wh * xl.z;
            low[3] += wl * xl.w;
            high[3] += wh * xl.w;
            low[4] += wl * xh.x;
            high[4] += wh * xh.x;
            low[5] += wl * xh.y;
            high[5] += wh * xh.y;
            low[6] += wl * xh.z;
            high[6] += wh * xh.z;
            low[7] += wl * xh.w;
            high[7] += wh * xh.w;
        }
        workgroupBarrier();
    }
    let token = first_token + 4u * tx;
    let row = first_row + 4u * ty;
    put4(token, row, last_token, low[0]);
    put4(token, row + 64u, last_token, high[0]);
    put4(token + 1u, row, last_token, low[1]);
    put4(token + 1u, row + 64u, last_token, high[1]);
    put4(token + 2u, row, last_token, low[2]);
    put4(token + 2u, row + 64u, last_token, high[2]);
    put4(token + 3u, row, last_token, low[3]);
    put4(token + 3u, row + 64u, last_token, high[3]);
    put4(token + 64u, row, last_token, low[4]);
    put4(token + 64u, row + 64u, last_token, high[4]);
    put4(token + 65u, row, last_token, low[5]);
    put4(token + 65u, row + 64u, last_token, high[5]);
    put4(token + 66u, row, last_token, low[6]);
    put4(token + 66u, row + 64u, last_token, high[6]);
    put4(token + 67u, row, last_token, low[7]);
    put4(token + 67u, row + 64u, last_token, high[7]);
}
