// Lines of activations times rows of weights on matrix units, f16 inputs and f32 sums. A workgroup of WAVES_X by WAVES_Y
// subgroups makes a tile of lines (x) by rows (y) in steps of 32 columns; each subgroup holds 4 by 2 matrices of sums.
// Which lines and rows these are, and where sums go: `lib/coop_tokens.wgsl` or `lib/coop_jobs.wgsl`.
// The next step's inputs are fetched while this one's are multiplied. With STAGES = 2 the tiles alternate, which saves
// a barrier. Reads the activations once per tile of rows and the weights once per tile of lines.
struct Sixteen { a: vec4<f16>, b: vec4<f16>, c: vec4<f16>, d: vec4<f16> }
@group(0) @binding(7) var<storage, read> x_half: array<Sixteen>;

const SUB_TOKENS: u32 = 4u * SIZE;
const SUB_ROWS: u32 = 2u * SIZE;
const TILE_TOKENS: u32 = WAVES_X * SUB_TOKENS;
const TILE_ROWS: u32 = WAVES_Y * SUB_ROWS;
// Pieces of sixteen columns in a tile: at most two per thread.
const X_PIECES: u32 = 2u * TILE_TOKENS;
const W_PIECES: u32 = 2u * TILE_ROWS;
// Whether every thread brings a first piece, and a second one.
const ALL_X: bool = X_PIECES >= WORKGROUP;
const ALL_W: bool = W_PIECES >= WORKGROUP;
const ALL_X_TWICE: bool = X_PIECES >= 2u * WORKGROUP;
const ALL_W_TWICE: bool = W_PIECES >= 2u * WORKGROUP;
// Whether some do.
const SOME_X_TWICE: bool = X_PIECES > WORKGROUP;
const SOME_W_TWICE: bool = W_PIECES > WORKGROUP;

// A workgroup's part: `lines` live lines from `first_line` on, rows from `first_row` on, which are counted from `base`.
struct Tile { first_line: u32, lines: u32, first_row: u32, base: u32 }

// Finished sums of one matrix per subgroup, on their way out.
var<workgroup> patch_sums: array<f32, WAVES_X * WAVES_Y * SIZE * SIZE>;

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

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    prepare_tile(ids);
    if tile_live() { multiply(ids, tile_of(ids)); }
}

fn multiply(ids: Ids, tile: Tile) {
    // Matrices of lines that all subgroups have, or may leave out.
    let second_live = second_lines_live();
    let third_live = third_lines_live();
    let wave_x = ids.subgroup % WAVES_X;
    let wave_y = ids.subgroup / WAVES_X;
    let second = ids.local + WORKGROUP;
    let brings_x = ALL_X || ids.local < X_PIECES;
    let brings_w = ALL_W || ids.local < W_PIECES;
    let brings_x_twice = ALL_X_TWICE || (SOME_X_TWICE && second < X_PIECES);
    let brings_w_twice = ALL_W_TWICE || (SOME_W_TWICE && second < W_PIECES);
    // Where a thread's pieces stand; both are the same half of a line's 32 columns.
    let part = ids.local % 2u;
    let x0_from = x_line(tile, ids.local / 2u) * (X_STRIDE4 / 4u) + part;
    let x1_from = x_line(tile, second / 2u) * (X_STRIDE4 / 4u) + part;
    let w0_row = w_line(tile, ids.local / 2u);
    let w1_row = w_line(tile, second / 2u);
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
    if brings_x { x0 = x_half[x0_from]; }
    if brings_x_twice { x1 = x_half[x1_from]; }
    if brings_w { w0 = fetch16(w0_row, part); }
    if brings_w_twice { w1 = fetch16(w1_row, part); }
    for (var block = 0u; block < BLOCKS; block++) {
        let stage = block % STAGES;
        if brings_x { put_x(stage, ids.local, x0); }
        if brings_x_twice { put_x(stage, second, x1); }
        if brings_w { put_w(stage, ids.local, w0); }
        if brings_w_twice { put_w(stage, second, w1); }
        workgroupBarrier();
        // The last step fetches its own inputs again, so that no branch stands before the products.
        let next = 2u * min(block + 1u, BLOCKS - 1u);
        if brings_x { x0 = x_half[x0_from + next]; }
        if brings_x_twice { x1 = x_half[x1_from + next]; }
        if brings_w { w0 = fetch16(w0_row, next + part); }
        if brings_w_twice { w1 = fetch16(w1_row, next + part); }
        let x_from = (stage * TILE_TOKENS + wave_x * SUB_TOKENS) * LINE;
        let w_from = (stage * TILE_ROWS + wave_y * SUB_ROWS) * LINE;
        for (var k = 0u; k < 32u / UNIT; k += SIZE / UNIT) {
            // Weights stand by rows: seen as columns × rows they are column-major.
            let b0 = coopLoad<MatB>(&w_tile[w_from + k], LINE);
            let b1 = coopLoad<MatB>(&w_tile[w_from + SIZE * LINE + k], LINE);
            let a0 = coopLoadT<MatA>(&x_tile[x_from + k], LINE);
            c00 = coopMultiplyAdd(a0, b0, c00);
            c01 = coopMultiplyAdd(a0, b1, c01);
            if second_live {
                let a1 = coopLoadT<MatA>(&x_tile[x_from + SIZE * LINE + k], LINE);
                c10 = coopMultiplyAdd(a1, b0, c10);
                c11 = coopMultiplyAdd(a1, b1, c11);
            }
            if third_live {
                let a2 = coopLoadT<MatA>(&x_tile[x_from + 2u * SIZE * LINE + k], LINE);
                let a3 = coopLoadT<MatA>(&x_tile[x_from + 3u * SIZE * LINE + k], LINE);
                c20 = coopMultiplyAdd(a2, b0, c20);
                c21 = coopMultiplyAdd(a2, b1, c21);
                c30 = coopMultiplyAdd(a3, b0, c30);
                c31 = coopMultiplyAdd(a3, b1, c31);
            }
        }
        if STAGES == 1u { workgroupBarrier(); }
    }
    let base = ids.subgroup * SIZE * SIZE;
    let line = wave_x * SUB_TOKENS;
    let row = wave_y * SUB_ROWS;
    coopStoreT(c00, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(tile, ids.lane, base, line, row);
    workgroupBarrier();
    coopStoreT(c01, &patch_sums[base], SIZE);
    workgroupBarrier();
    put_patch(tile, ids.lane, base, line, row + SIZE);
    if second_live {
        workgroupBarrier();
        coopStoreT(c10, &patch_sums[base], SIZE);
        workgroupBarrier();
        put_patch(tile, ids.lane, base, line + SIZE, row);
        workgroupBarrier();
        coopStoreT(c11, &patch_sums[base], SIZE);
        workgroupBarrier();
        put_patch(tile, ids.lane, base, line + SIZE, row + SIZE);
    }
    if third_live {
        workgroupBarrier();
        coopStoreT(c20, &patch_sums[base], SIZE);
        workgroupBarrier();
        put_patch(tile, ids.lane, base, line + 2u * SIZE, row);
        workgroupBarrier();
        coopStoreT(c21, &patch_sums[base], SIZE);
        workgroupBarrier();
        put_patch(tile, ids.lane, base, line + 2u * SIZE, row + SIZE);
        workgroupBarrier();
        coopStoreT(c30, &patch_sums[base], SIZE);
        workgroupBarrier();
        put_patch(tile, ids.lane, base, line + 3u * SIZE, row);
        workgroupBarrier();
        coopStoreT(c31, &patch_sums[base], SIZE);
        workgroupBarrier();
        put_patch(tile, ids.lane, base, line + 3u * SIZE, row + SIZE);
    }
}
