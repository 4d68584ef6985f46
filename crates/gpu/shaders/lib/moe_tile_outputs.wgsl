// Tiles of down: the inputs are the products of the places, the results go to their jobs, [jobs, OUT_STRIDE].
@group(0) @binding(2) var<storage, read_write> outputs: array<f32>;

fn x_row(place: u32) -> u32 { return place; }

// Row of a line, from the expert's first one on.
fn line_row(line: u32) -> u32 { return min(line, ROWS - 1u); }

// The sums of four lines of a place.
fn put4(place: u32, base: u32, line: u32, values: vec4<f32>) {
    let job = order[place];
    for (var i = 0u; i < 4u; i++) {
        if line + i < ROWS {
            outputs[job * OUT_STRIDE + line + i] = values[i] + overlay_row(base + line + i, place);
        }
    }
}
