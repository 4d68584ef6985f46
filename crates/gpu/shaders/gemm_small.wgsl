// Tokens times rows of weights, f32, for few tokens or rows. A workgroup makes a tile of 32 tokens (x) by 32 rows (y)
// in steps of 32 columns; each of its 64 threads holds 4 by 4 sums. Reads the activations once per 32 rows and the
// weights once per 32 tokens.
const TILE: u32 = 32u;
const LINE4: u32 = TILE / 4u;

// [column][token] and [column][row].
var<workgroup> x_tile: array<vec4<f32>, 32u * LINE4>;
var<workgroup> w_tile: array<vec4<f32>, 32u * LINE4>;

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
    let line = ids.local % TILE;
    // Each thread brings sixteen columns of one line of both tiles.
    let part = ids.local / TILE;
    let x_from = min(first_token + line, last_token) * X_STRIDE4 + 4u * part;
    let w_row = min(first_row + line, ROWS - 1u);
    let tx = ids.local / 8u;
    let ty = ids.local % 8u;
    var sums: array<vec4<f32>, 4>;
    var x0 = x[x_from];
    var x1 = x[x_from + 1u];
    var x2 = x[x_from + 2u];
    var x3 = x[x_from + 3u];
    var raw = fetch16(w_row, part);
    for (var block = 0u; block < BLOCKS; block++) {
        stage_x(line, 4u * part, x0);
        stage_x(line, 4u * part + 1u, x1);
        stage_x(line, 4u * part + 2u, x2);
        stage_x(line, 4u * part + 3u, x3);
        stage_w(line, 4u * part, raw4(raw, 0u));
        stage_w(line, 4u * part + 1u, raw4(raw, 1u));
        stage_w(line, 4u * part + 2u, raw4(raw, 2u));
        stage_w(line, 4u * part + 3u, raw4(raw, 3u));
        workgroupBarrier();
        // The last step fetches its own inputs again.
        let next = min(block + 1u, BLOCKS - 1u);
        x0 = x[x_from + 8u * next];
        x1 = x[x_from + 8u * next + 1u];
        x2 = x[x_from + 8u * next + 2u];
        x3 = x[x_from + 8u * next + 3u];
        raw = fetch16(w_row, 2u * next + part);
        for (var k = 0u; k < 32u; k++) {
            let w = w_tile[k * LINE4 + ty];
            let t = x_tile[k * LINE4 + tx];
            sums[0] += w * t.x;
            sums[1] += w * t.y;
            sums[2] += w * t.z;
            sums[3] += w * t.w;
        }
        workgroupBarrier();
    }
    let token = first_token + 4u * tx;
    let row = first_row + 4u * ty;
    put4(token, row, last_token, sums[0]);
    put4(token + 1u, row, last_token, sums[1]);
    put4(token + 2u, row, last_token, sums[2]);
    put4(token + 3u, row, last_token, sums[3]);
}
