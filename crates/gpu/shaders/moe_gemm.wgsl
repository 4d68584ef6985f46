// Jobs grouped by expert times rows of weights, f32. A workgroup makes a tile of 32 jobs (y) by 128 lines (x) in steps
// of 32 columns; each of its 256 threads holds 4 by 4 sums. An expert's weights are decoded once per 32 of its jobs.
@group(0) @binding(3) var<storage, read> order: array<u32>;
@group(0) @binding(4) var<storage, read> tiles: array<vec4<u32>>;

const LINES: u32 = 128u;
const X_LINE: u32 = TILE + 4u;
const W_LINE: u32 = LINES + 4u;

var<workgroup> x_tile: array<f32, 32u * X_LINE>;
var<workgroup> w_tile: array<f32, 32u * W_LINE>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    if ids.group.y >= tiles[0].x { return; }
    let tile = tiles[1u + ids.group.y];
    let base = expert_row(tile.x);
    if base == NONE { return; }
    let first_line = ids.group.x * LINES;
    let tx = 4u * (ids.local % (TILE / 4u));
    let ty = 4u * (ids.local / (TILE / 4u));
    let c = ids.local % 8u;
    let line = ids.local / 8u;
    let source = x_row(tile.y + min(line, tile.z - 1u)) * X_STRIDE4 + c;
    let rows = base + vec4(line_row(first_line + line), line_row(first_line + line + 32u),
        line_row(first_line + line + 64u), line_row(first_line + line + 96u));
    var sum0 = vec4(0.0);
    var sum1 = vec4(0.0);
    var sum2 = vec4(0.0);
    var sum3 = vec4(0.0);
    for (var block = 0u; block < BLOCKS; block++) {
        let values = x[source + 8u * block];
        let w0 = weight4(rows.x, 8u * block + c);
        let w1 = weight4(rows.y, 8u * block + c);
        let w2 = weight4(rows.z, 8u * block + c);
        let w3 = weight4(rows.w, 8u * block + c);
        put_column(4u * c, line, values.x, vec4(w0.x, w1.x, w2.x, w3.x));
        put_column(4u * c + 1u, line, values.y, vec4(w0.y, w1.y, w2.y, w3.y));
        put_column(4u * c + 2u, line, values.z, vec4(w0.z, w1.z, w2.z, w3.z));
        put_column(4u * c + 3u, line, values.w, vec4(w0.w, w1.w, w2.w, w3.w));
        workgroupBarrier();
        for (var k = 0u; k < 32u; k++) {
            let at = k * W_LINE + ty;
            let w = vec4(w_tile[at], w_tile[at + 1u], w_tile[at + 2u], w_tile[at + 3u]);
            let from_x = k * X_LINE + tx;
            sum0 += w * x_tile[from_x];
            sum1 += w * x_tile[from_x + 1u];
            sum2 += w * x_tile[from_x + 2u];
            sum3 += w * x_tile[from_x + 3u];
        }
        workgroupBarrier();
    }
    let place = tile.y + tx;
    if tx < tile.z { put4(place, base, first_line + ty, sum0); }
    if tx + 1u < tile.z { put4(place + 1u, base, first_line + ty, sum1); }
    if tx + 2u < tile.z { put4(place + 2u, base, first_line + ty, sum2); }
    if tx + 3u < tile.z { put4(place + 3u, base, first_line + ty, sum3); }
}

// A thread's part of a column of both tiles: one job, and every 32nd line.
fn put_column(k: u32, line: u32, value: f32, weights: vec4<f32>) {
    x_tile[k * X_LINE + line] = value;
    let at = k * W_LINE + line;
    w_tile[at] = weights.x;
    w_tile[at + 32u] = weights.y;
    w_tile[at + 64u] = weights.z;
    w_tile[at + 96u] = weights.w;
}
