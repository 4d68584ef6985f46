// Tiles of down: the inputs are the products of the places, the results go to their jobs, [jobs, OUT_STRIDE]. What
// stands in the padding counts nothing.
@group(0) @binding(2) var<storage, read_write> outputs: array<vec4<f32>>;

fn x_row(place: u32) -> u32 { return place; }

// Row of a line, from the expert's first one on.
fn line_row(line: u32) -> u32 { return min(line, ROWS - 1u); }

// The sums of four lines of a place.
fn put4(place: u32, base: u32, line: u32, values: vec4<f32>) {
    if line >= OUT_STRIDE { return; }
    var sums = values;
    for (var i = 0u; i < 4u; i++) { sums[i] += overlay_row(base + line_row(line + i), place); }
    outputs[(order[place] * OUT_STRIDE + line) / 4u] = sums;
}
