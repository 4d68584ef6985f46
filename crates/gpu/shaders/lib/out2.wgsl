// Sums of 2 stacked matrices. Rows are those of a piece, which starts at FIRST_ROW.
@group(0) @binding(2) var<storage, read_write> out0: array<f32>;
@group(0) @binding(3) var<storage, read_write> out1: array<f32>;

// Which matrix a row belongs to.
fn part_of(row: u32) -> u32 { return u32(row + FIRST_ROW >= END0); }

fn put(token: u32, row: u32, value: f32) {
    let r = row + FIRST_ROW;
    let sum = value + bias_of(r);
    if r < END0 {
        let at = token * OUT_STRIDE0 + r;
        if ADD { out0[at] += sum; } else { out0[at] = sum; }
    } else {
        let at = token * OUT_STRIDE1 + r - END0;
        if ADD { out1[at] += sum; } else { out1[at] = sum; }
    }
}
