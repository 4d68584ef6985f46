// One token: act(gate · x) * (up · x) of 32 neighbouring neurons per workgroup, stored as one int8 group. The stacked
// matrix holds NEURONS gate rows, then as many up rows. Reads every byte of both once.
@group(0) @binding(2) var<storage, read_write> out_codes: array<u32>;
@group(0) @binding(4) var<storage, read_write> out_scales: array<vec2<f32>>;

const STEPS: u32 = (BLOCKS + TEAM - 1u) / TEAM;
const PER_TEAM: u32 = 32u * TEAM / WORKGROUP;

var<workgroup> products: array<f32, 32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let group = group_index(ids.group, ids.groups);
    let first = group * 32u + team_index(ids) * PER_TEAM;
    prepare_x(ids);
    var gates: array<f32, PER_TEAM>;
    var ups: array<f32, PER_TEAM>;
    for (var step = 0u; step < STEPS; step++) {
        let block = step * TEAM + team_lane(ids);
        if block < BLOCKS {
            let low = x_low(block);
            let high = x_high(block);
            let scale = x_scales[block];
            for (var i = 0u; i < PER_TEAM; i++) {
                gates[i] += dot_block(load_block(first + i, block), low, high, scale);
                ups[i] += dot_block(load_block(NEURONS + first + i, block), low, high, scale);
            }
        }
    }
    for (var i = 0u; i < PER_TEAM; i++) {
        let gate = team_sum(ids, gates[i]) * row_factor(first + i);
        let up = team_sum(ids, ups[i]) * row_factor(NEURONS + first + i);
        if team_lane(ids) == 0u { products[team_index(ids) * PER_TEAM + i] = activate(gate) * up * mask_of(first + i); }
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
