// The int8 copy of 32 finished products, from `first` on.
@group(0) @binding(3) var<storage, read_write> product_codes: array<vec4<u32>>;
@group(0) @binding(4) var<storage, read_write> product_scales: array<vec2<f32>>;

fn pack_products(group: u32, first: u32) {
    var values: array<vec4<f32>, 8>;
    for (var i = 0u; i < 8u; i++) {
        let at = first + 4u * i;
        values[i] = vec4(finished[at], finished[at + 1u], finished[at + 2u], finished[at + 3u]);
    }
    let packed = pack_int8(values);
    product_codes[2u * group] = packed.low;
    product_codes[2u * group + 1u] = packed.high;
    product_scales[group] = packed.scale;
}
