// out[row] = table[token] * SCALE for tables with a sparse overlay. One workgroup per token.
@group(0) @binding(1) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups);
    let token = row_token(min(row, step_rows() - 1u));
    let live = row < step_rows() && token >= FIRST_ROW && token - FIRST_ROW < ROWS;
    let local = select(0u, token - FIRST_ROW, live);
    if live {
        for (var c4 = ids.local; c4 < COLS4; c4 += WORKGROUP) {
            let w = weight4(local, c4) * SCALE;
            for (var k = 0u; k < 4u; k++) { out[row * OUT_STRIDE + 4u * c4 + k] = w[k]; }
        }
    }
    storageBarrier();
    if live {
        // Columns are unique within a row.
        for (var e = row_ptr[local] + ids.local; e < row_ptr[local + 1u]; e += WORKGROUP) {
            out[row * OUT_STRIDE + entry_column(e)] += entry_value(e) * SCALE;
        }
    }
}
