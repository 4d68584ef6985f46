// The int8 copy of the finished products: `quads` quads, of which the first is quad `at` of the copy. Eight neighbouring
// threads share a group of 32, each with one quad. Second codes are PACKED_REST groups after the first ones.
@group(0) @binding(3) var<storage, read_write> product_codes: array<u32>;
@group(0) @binding(4) var<storage, read_write> product_scales: array<vec2<f32>>;

// A thread each.
const_assert NEURONS / 4u <= WORKGROUP;

fn put_packed(at: u32, packed: Octet) {
    product_codes[at] = packed.word;
    if at % 8u == 0u { product_scales[at / 8u] = packed.scale; }
}

fn pack_products(ids: Ids, at: u32, quads: u32) {
    let quad = thread_index(ids);
    let from_n = 4u * min(quad, NEURONS / 4u - 1u);
    let value = vec4(finished[from_n], finished[from_n + 1u], finished[from_n + 2u], finished[from_n + 3u]);
    let packed = pack_octet(ids, value, octet_top(ids, value));
    if quad < quads { put_packed(at + quad, packed); }
    if CODES > 1u {
        let rest = pack_rest(ids, packed);
        if quad < quads { put_packed(at + quad + 8u * PACKED_REST, rest); }
    }
}
