// One token: act(gate · x) * (up · x) of 32 neighbouring neurons per workgroup, stored as one int8 group. The stacked
// matrix holds NEURONS gate rows, then as many up rows. Reads every byte of both once.
@group(0) @binding(2) var<storage, read_write> out_codes: array<u32>;
@group(0) @binding(4) var<storage, read_write> out_scales: array<vec2<f32>>;

const PER_TEAM: u32 = 32u * TEAM / WORKGROUP;

var<workgroup> products: array<f32, 32>;

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
    if ids.local < 8u {
        var top = 0.0;
        for (var k = 0u; k < 32u; k++) { top = max(top, abs(products[k])); }
        let inverse = select(0.0, 127.0 / top, top > 0.0);
        let four = 4u * ids.local;
        let values = vec4(products[four], products[four + 1u], products[four + 2u], products[four + 3u]);
        out_codes[8u * group + ids.local] = pack4xI8(vec4<i32>(round(values * inverse)));
        if ids.local == 0u {
            var sum = 0;
            for (var k = 0u; k < 32u; k++) { sum += i32(round(products[k] * inverse)); }
            out_scales[group] = vec2(top / 127.0, top / 127.0 * f32(sum));
        }
    }
}
