// Tokens times rows of weights on matrix units, f16 inputs and f32 sums. A workgroup of WAVES_X by WAVES_Y subgroups
// makes a tile of tokens (x) by rows (y) in steps of 32 columns; each subgroup holds 4 by 2 matrices of sums.
// The next step's inputs are fetched while this one's are multiplied. With STAGES = 2 the tiles alternate, which saves
// a barrier. Reads the activations once per tile of rows and the weights once per tile of tokens.
struct Sixteen { a: vec4<f16>, b: vec4<f16>, c: vec4<f16>, d: vec4<f16> }
@group(0) @binding(7) var<storage, read> x_half: array<Sixteen>;

const SUB_TOKENS: u32 = 4u * SIZE;
const SUB_ROWS: u32 = 2u * SIZE;
const TILE_TOKENS: u32 = WAVES_X * SUB_TOKENS;
const TILE_ROWS: u32 = WAVES_Y * SUB_ROWS;
// Pieces of sixteen columns in a tile: at most two per thread.
const X_PIECES: u32 = 2u * TILE_TOKENS;
const W_PIECES: u32 = 2u * TILE_ROWS;

// Finished sums of one matrix per subgroup, on their way out.
var<workgroup> patch_sums: array<f32, WAVES_X * WAVES_Y * SIZE * SIZE>;

// The piece of the tile of activations that a thread brings.
fn x_piece(piece: u32, first_token: u32, last_token: u32, block: u32) -> Sixteen {
    let token = min(first_token + piece / 2u, last_token);
    return x_half[token * (X_STRIDE4 / 4u) + 2u * block + piece % 2u];
}

fn w_piece(piece: u32, first_row: u32, block: u32) -> Raw {
    return fetch16(min(first_row + piece / 2u, ROWS - 1u), 2u * block + piece % 2u);
}

fn put_x(stage: u32, piece: u32, x: Sixteen) {
    let line = stage * TILE_TOKENS + piece / 2u;
    let c4 = 4u * (piece % 2u);
    stage_x(line, c4, x.a);
    stage_x(line, c4 + 1u, x.b);
    stage_x(line, c4 + 2u, x.c);
    stage_x(line, c4 + 3u, x.d);
}

fn put_w(stage: u32, piece: u32, raw: Raw) {
    let line = stage * TILE_ROWS + piece / 2u;
    let c4 = 4u * (piece % 2u);
    stage_w(line, c4, vec4<f16>(raw4(raw, 0u)));
    stage_w(line, c4 + 1u, vec4<f16>(raw4(raw, 1u)));
    stage_w(line, c4 + 2u, vec4<f16>(raw4(raw, 2u)));
    stage_w(line, c4 + 3u, vec4<f16>(raw4(raw, 3u)));
}

// Writes the matrix of sums that stands in this subgroup's part of `patch_sums`.
fn put_patch(lane: u32, base: u32, first_token: u32, first_row: u32, last_token: u32) {
    for (var i = lane; i < SIZE * SIZE; i += TEAM) {
        let token = first_token + i / SIZE;
        let row = first_row + i % SIZE;
        if token <= last_token && row < ROWS { put(token, row, patch_sums[base + i] * raw_factor(row)); }
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let last_token = live_tokens() - 1u;
    let first_token = ids.group.x * TILE_TOKENS;
    let first_row = group_index(ids.group, ids.groups) * TILE_ROWS;
    let wave_x = ids.subgroup % WAVES_X;
    let wave_y = ids.subgroup / WAVES_X;
    let second = ids.local + WORKGROUP;
    var c00: MatC;
    var c01: MatC;
    var c10: MatC;
    var c11: MatC;
    var c20: MatC;
    var c21: MatC;
    var c30: MatC;
    var c31: MatC;
    var x0: Sixteen;
    var x1: Sixteen;
    var w0: Raw;
    var w1: Raw;
    if ids.local < X_PIECES { x0 = x_piece(ids.local, first_token, last_token, 0u); }
    if second < X_PIECES { x1 = x_piece(second, first_token, last_token, 0u); }
    if ids.local < W_PIECES { w0 = w_piece(ids.local, first_row, 0u); }
    if second < W_PIECES { w1 = w_piece(second, first_row, 0u); }
    for (var block = 0u; block < BLOCKS; block++) {
        let stage = block % STAGES;
        if ids.local < X_PIECES { put_x(stage, ids.local, x0); }
        if second < X_PIECES { put_x(stage, second, x1); }
        if ids.local < W_PIECES { put_w(stage, ids.local, w0); }
        if second < W_PIECES { put_w(stage, second, w1); }
        workgroupBarrier();
        // The last step fetches its own inputs again, so that no branch stands before the products.
        let next = min(block + 1u, BLOCKS - 1u);
        if ids.local < X_PIECES { x0 = x_piece(ids.local, first_token, last_token, next); }
        if second < X_PIECES { x1 = x_piece(second, first_token, last_token, next); }
        if ids.local < W_PIECES { w0 = w_piece(ids.local, first_row, next); }
        if second < W_PIECES { w1 = w_piece(second, first_row, next); }
        let x_from = (stage * TILE_TOKENS + wave_x * SUB_TOKENS) * LINE;
        let w_from = (stage * TILE_ROWS + wave_y * SUB_ROWS) * LINE;
        for (var k = 0u; k < 32u / UNIT; k += SIZE / UNIT) {
            // Weights stand by rows: seen as columns × rows they are column-major.
            let b0 = coopLoad<MatB>(&w_tile[w_from + k], LINE);
            let b1 = coopLoad<MatB>(&w_tile[w_from + SIZE * LINE + k], LINE);
            let a0 = coopLoadT<MatA>(&x_tile[x_from + k], LINE);
            let a1 = coopLoadT<MatA>(&x_tile[x_from + SIZE * LINE + k], LINE);
            let a2 = coopLoadT<MatA>(&x_tile[x_from + 2u * SIZE * LINE + k], LINE);
            let a3 = coopLoadT<MatA>(&x_tile[x_from + 3u * SIZE * LINE + k], LINE);
            c00 = coopMultiplyAdd(a0, b0, c00);
            c01 = coopMultiplyAdd(a0, b1, c01);
            c10 = coopMultiplyAdd(a1, b0, c10);
            c11 = coopMultiplyAdd(a1, b1, c11);
            c20 = coopMultiplyAdd(a2, b0, c20);
            c21 = coopMultiplyAdd(a2, b1, c21);
            c30 = coopMultiplyAdd(a3, b0, c30);
            c31 = coopMultiplyAdd(a3, b1, c31);
        }
        if STAGES == 1u { workgroupBarrier(); }
    }
    let base = ids.subgroup * SIZE * SIZE;
    let token = first_token + wave_x * SUB_TOKENS;
    let row = first_row + wave_y * SUB_ROWS;
    coopStoreT(c00, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(ids.lane, base, token, row, last_token);
    workgroupBarrier();
    coopStoreT(c01, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(ids.lane, base, token, row + SIZE, last_token);
    workgroupBarrier();
    coopStoreT(c10, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(ids.lane, base, token + SIZE, row, last_token);
    workgroupBarrier();
    coopStoreT(c11, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(ids.lane, base, token + SIZE, row + SIZE, last_token);
    workgroupBarrier();
    coopStoreT(c20, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(ids.lane, base, token + 2u * SIZE, row, last_token);
    workgroupBarrier();
    coopStoreT(c21, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(ids.lane, base, token + 2u * SIZE, row + SIZE, last_token);
    workgroupBarrier();
    coopStoreT(c30, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(ids.lane, base, token + 3u * SIZE, row, last_token);
    workgroupBarrier();
    coopStoreT(c31, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(ids.lane, base, token + 3u * SIZE, row + SIZE, last_token);
}
