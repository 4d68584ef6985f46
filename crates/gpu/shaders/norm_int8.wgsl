// y = x / sqrt(mean(x²) + EPS) * weight, and its int8 copy. One workgroup per row, one thread per group of 32.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> weight: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(4) var<storage, read_write> codes: array<vec4<u32>>;
@group(0) @binding(5) var<storage, read_write> scales: array<vec2<f32>>;

const QUADS: u32 = X_STRIDE / 4u;
const GROUPS: u32 = X_STRIDE / 32u;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = group_index(ids.group, ids.groups);
    let base = min(row, step_rows() - 1u) * QUADS;
    var part = 0.0;
    // The padding is zero.
    for (var i = ids.local; i < QUADS; i += WORKGROUP) { part += dot(x[base + i], x[base + i]); }
    let factor = 1.0 / sqrt(group_sum(ids, part) / f32(WIDTH) + EPS);
    if row >= step_rows() { return; }
    for (var g = ids.local; g < GROUPS; g += WORKGROUP) {
        var values: array<vec4<f32>, 8>;
        for (var i = 0u; i < 8u; i++) {
            values[i] = x[base + 8u * g + i] * factor * weight[8u * g + i];
            y[base + 8u * g + i] = values[i];
        }
        let packed = pack_int8(values);
        let at = row * GROUPS + g;
        codes[2u * at] = packed.low;
        codes[2u * at + 1u] = packed.high;
        scales[at] = packed.scale;
    }
}
