// out[row] = table[token] * SCALE: one row of weights read per token. One workgroup per token.
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups);
    if row >= step_rows() { return; }
    let token = row_token(row);
    if token < FIRST_ROW || token - FIRST_ROW >= ROWS { return; }
    for (var c4 = ids.local; c4 < COLS4; c4 += WORKGROUP) {
        let w = weight4(token - FIRST_ROW, c4) * SCALE;
        for (var k = 0u; k < 4u; k++) {
            if 4u * c4 + k < COLS { out[row * OUT_STRIDE + 4u * c4 + k] = w[k]; }
        }
    }
}
