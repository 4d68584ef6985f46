// The int8 copy of the finished products: `quads` quads, of which the first is quad `at` of the copy. Eight neighbouring
// threads share a group of 32, each with one quad.
@group(0) @binding(3) var<storage, read_write> product_codes: array<u32>;
@group(0) @binding(4) var<storage, read_write> product_scales: array<vec2<f32>>;

// A thread each.
const_assert NEURONS / 4u <= WORKGROUP;

fn pack_products(ids: Ids, at: u32, quads: u32) {
    let quad = thread_index(ids);
    let from_n = 4u * min(quad, NEURONS / 4u - 1u);
    let value = vec4(finished[from_n], finished[from_n + 1u], finished[from_n + 2u], finished[from_n + 3u]);
    let size = abs(value);
    let top = octet_max(ids, max(max(size.x, size.y), max(size.z, size.w)));
    let inverse = select(0.0, 127.0 / top, top > 0.0);
    let codes = vec4<i32>(round(value * inverse));
    let sum = octet_sum(ids, codes.x + codes.y + codes.z + codes.w);
    if quad < quads {
        product_codes[at + quad] = pack4xI8(codes);
        if quad % 8u == 0u { product_scales[(at + quad) / 8u] = vec2(top / 127.0, top / 127.0 * f32(sum)); }
    }
}
