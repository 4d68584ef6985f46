// act(gate x) * (up x) of neighbouring neurons of a job: [jobs, STRIDE], zero from WIDTH on.
@group(0) @binding(2) var<storage, read_write> products: array<f32>;

// A team makes four neurons at a time; a workgroup makes whole groups of 32.
const CREWS: u32 = WORKGROUP / TEAM;
const NEURONS: u32 = max(4u * CREWS, 32u);
var<workgroup> finished: array<f32, NEURONS>;

// Rows of a team's four neurons, from `neuron` on.
fn rows_of(base: u32, neuron: u32) -> vec4<u32> {
    return base + min(neuron + vec4(0u, 1u, 2u, 3u), vec4(WIDTH - 1u));
}

// The neuron's product from its sums. Where gate and up stand in different device matrices, the gate comes first.
fn product_of(gate: f32, up: f32, at: u32) -> f32 {
    if UP_ONLY { return products[at] * gate; }
    if GATE_ONLY { return activate(gate); }
    return activate(gate) * up;
}

// Keeps the product of neuron `first + n` until the others are there.
fn finish(job: u32, first: u32, n: u32, gate: f32, up: f32) {
    let neuron = first + n;
    if neuron < WIDTH { finished[n] = product_of(gate, up, job * STRIDE + neuron); } else { finished[n] = 0.0; }
}

// Writes the finished products and their int8 copy; the whole workgroup calls it together.
fn write_products(ids: Ids, job: u32, first: u32) {
    let count = min(NEURONS, STRIDE - first);
    for (var n = ids.local; n < count; n += WORKGROUP) { products[job * STRIDE + first + n] = finished[n]; }
    pack_products(ids, (job * STRIDE + first) / 4u, count / 4u);
}
