// out = C * conv(B * x) per channel, for the rows of a span; input rows are B | C | x. A thread takes a channel (x) and
// CHUNK rows: workgroups along y stand for rows, those inside a chunk have nothing to do. The first chunk of a span
// alone reads the ring of the last KERNEL - 1 products (oldest first), so it may also write the new one.
// Reads 12 bytes per channel and row, and the ring once per span.
@group(0) @binding(1) var<storage, read> input: array<f32>;
@group(0) @binding(2) var<storage, read> taps: array<f32>;
@group(0) @binding(3) var<storage, read_write> state: array<f32>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

fn gated(row: u32, channel: u32) -> f32 {
    return input[row * X_STRIDE + channel] * input[row * X_STRIDE + 2u * WIDTH + channel];
}

// The product at `t + i - (KERNEL - 1)` of a span, from the ring where that lies before it.
fn past(base: u32, first_row: u32, t: u32, i: u32, channel: u32) -> f32 {
    if t + i + 1u >= KERNEL { return gated(first_row + t + i + 1u - KERNEL, channel); }
    return state[base + (t + i) * WIDTH + channel];
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let channel = ids.group.x * WORKGROUP + ids.local;
    let row = ids.group.y;
    let span = row_span(row);
    let first_row = span_first_row(span);
    let rows = span_len(span);
    let start = row - first_row;
    if channel >= WIDTH || start % CHUNK != 0u { return; }
    let base = span_slot(span) * SLOT_FLOATS;
    for (var t = start; t < min(start + CHUNK, rows); t++) {
        var sum = 0.0;
        for (var i = 0u; i < KERNEL; i++) {
            sum += past(base, first_row, t, i, channel) * taps[channel * KERNEL + i];
        }
        let at = (first_row + t) * X_STRIDE + WIDTH + channel;
        out[(first_row + t) * OUT_STRIDE + channel] = input[at] * sum;
    }
    if start == 0u {
        // Entries move towards the front, so each is read before it is overwritten.
        for (var r = 0u; r + 1u < KERNEL; r++) {
            state[base + r * WIDTH + channel] = past(base, first_row, rows, r, channel);
        }
    }
}
