// Tiles of gate and up: the input of a job is its token's; act(gate x) * (up x) goes to [places, STRIDE], zero from
// WIDTH on. Where one matrix holds both, four neighbouring lines are the gates of two neurons and their ups.
@group(0) @binding(2) var<storage, read_write> products: array<Kept>;

fn x_row(place: u32) -> u32 { return order[place] / JOBS; }

// Row of a line, from the expert's first one on.
fn line_row(line: u32) -> u32 {
    if PAIR { return min(line / 4u * 2u + line % 2u, WIDTH - 1u) + (line / 2u % 2u) * WIDTH; }
    return min(line, WIDTH - 1u);
}

fn put_product(place: u32, neuron: u32, gate: f32, up: f32) {
    if neuron >= STRIDE { return; }
    let at = place * STRIDE + neuron;
    if neuron >= WIDTH { products[at] = kept(0.0); }
    else if UP_ONLY { products[at] = kept(f32(products[at]) * gate); }
    else if GATE_ONLY { products[at] = kept(activate(gate)); }
    else { products[at] = kept(activate(gate) * up); }
}

// The sums of four lines of a place.
fn put4(place: u32, base: u32, line: u32, values: vec4<f32>) {
    var sums = values;
    for (var i = 0u; i < 4u; i++) { sums[i] += overlay_row(base + line_row(line + i), x_row(place)); }
    if PAIR {
        put_product(place, line / 2u, sums.x, sums.z);
        put_product(place, line / 2u + 1u, sums.y, sums.w);
    } else {
        for (var i = 0u; i < 4u; i++) { put_product(place, line + i, sums[i], 0.0); }
    }
}
