// Matrix units of 16 by 16 by 16. Tiles are staged as vec4, which these units read too.
alias MatA = coop_mat16x16<f16, A>;
alias MatB = coop_mat16x16<f16, B>;
alias MatC = coop_mat16x16<f32, C>;
const SIZE: u32 = 16u;
// Halves in an element of a tile.
const UNIT: u32 = 4u;
// Elements of a line of 32 columns: 80 bytes, so that eight lines touch every bank once.
const LINE: u32 = 10u;

var<workgroup> x_tile: array<vec4<f16>, STAGES * TILE_TOKENS * LINE>;
var<workgroup> w_tile: array<vec4<f16>, STAGES * TILE_ROWS * LINE>;

fn stage_x(line: u32, c4: u32, value: vec4<f16>) { x_tile[line * LINE + c4] = value; }
fn stage_w(line: u32, c4: u32, value: vec4<f16>) { w_tile[line * LINE + c4] = value; }
