// Matrix units of 16 by 16 by 16, tiles staged as scalars, for drivers that read no others.
alias MatA = coop_mat16x16<f16, A>;
alias MatB = coop_mat16x16<f16, B>;
alias MatC = coop_mat16x16<f32, C>;
const SIZE: u32 = 16u;
// Halves in an element of a tile.
const UNIT: u32 = 1u;
// Elements of a line of 32 columns: 80 bytes, so that eight lines touch every bank once.
const LINE: u32 = 40u;

var<workgroup> x_tile: array<f16, STAGES * TILE_TOKENS * LINE>;
var<workgroup> w_tile: array<f16, STAGES * TILE_ROWS * LINE>;

fn stage_x(line: u32, c4: u32, value: vec4<f16>) {
    let at = line * LINE + 4u * c4;
    x_tile[at] = value.x;
    x_tile[at + 1u] = value.y;
    x_tile[at + 2u] = value.z;
    x_tile[at + 3u] = value.w;
}

fn stage_w(line: u32, c4: u32, value: vec4<f16>) {
    let at = line * LINE + 4u * c4;
    w_tile[at] = value.x;
    w_tile[at + 1u] = value.y;
    w_tile[at + 2u] = value.z;
    w_tile[at + 3u] = value.w;
}
