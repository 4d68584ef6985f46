// The weighted sum over a token's experts, added to `out` or stored there.
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<storage, read> factors: array<f32>;

fn put_sum(token: u32, row: u32, sum: f32) {
    let at = token * OUT_STRIDE + row;
    if ADD { out[at] += sum; } else { out[at] = sum; }
}
