// One token: act(gate · x) * (up · x) of 32 neighbouring neurons per workgroup, stored as one int8 group, second
// codes PACKED_REST groups further on. The stacked matrix holds NEURONS gate rows, then as many up rows. Reads every byte
// of both once.
@group(0) @binding(2) var<storage, read_write> out_codes: array<u32>;
@group(0) @binding(4) var<storage, read_write> out_scales: array<vec2<f32>>;

const PER_TEAM: u32 = 32u * TEAM / WORKGROUP;

var<workgroup> products: array<f32, 32>;

fn put_packed(at: u32, packed: Octet) {
    out_codes[at] = packed.word;
    if at % 8u == 0u { out_scales[at / 8u] = packed.scale; }
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let group = group_index(ids.group, ids.groups);
    // The whole workgroup leaves; a folded grid is rounded up.
    if group >= NEURONS / 32u { return; }
    let first = group * 32u + team_index(ids) * PER_TEAM;
    let lane = team_lane(ids);
    prepare_x(ids);
    for (var i = 0u; i < PER_TEAM; i++) {
        let neuron = first + i;
        let sums = dot_x2(neuron, NEURONS + neuron, lane);
        let gate = team_sum(ids, sums.x) * row_factor(neuron);
        let up = team_sum(ids, sums.y) * row_factor(NEURONS + neuron);
        if lane == 0u { products[team_index(ids) * PER_TEAM + i] = activate(gate) * up * mask_of(neuron); }
    }
    workgroupBarrier();
    // The first eight threads' quads count.
    let quad = thread_index(ids) % 8u;
    let value = vec4(products[4u * quad], products[4u * quad + 1u], products[4u * quad + 2u], products[4u * quad + 3u]);
    let packed = pack_octet(ids, value, octet_top(ids, value));
    if thread_index(ids) < 8u { put_packed(8u * group + quad, packed); }
    if CODES > 1u {
        let rest = pack_rest(ids, packed);
        if thread_index(ids) < 8u { put_packed(8u * (group + PACKED_REST) + quad, rest); }
    }
}
