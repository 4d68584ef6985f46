// The int8 copy of one activation row, brought to workgroup memory. Its second codes are X_REST groups after the first
// ones.
@group(0) @binding(7) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> packed_scales: array<vec2<f32>>;

// Where a group of workgroup memory stands in the buffers.
fn packed_group(group: u32) -> u32 {
    if CODES > 1u { return select(group, group - BLOCKS + X_REST, group >= BLOCKS); }
    return group;
}

// Half `i % 2` of group `i / 2`.
fn packed_half(i: u32) -> vec4<u32> { return x_codes[2u * packed_group(i / 2u) + i % 2u]; }

fn put_words(i: u32, four: vec4<u32>) {
    let k = (i % 2u) * 4u;
    put_word(k, i / 2u, four.x);
    put_word(k + 1u, i / 2u, four.y);
    put_word(k + 2u, i / 2u, four.z);
    put_word(k + 3u, i / 2u, four.w);
}

// Fills the copy; the whole workgroup calls it together. Two loads are on their way at a time.
fn prepare_x(ids: Ids) {
    let end = 2u * X_GROUPS;
    for (var i = ids.local; i < end; i += 2u * WORKGROUP) {
        let a = packed_half(i);
        let b = packed_half(min(i + WORKGROUP, end - 1u));
        put_words(i, a);
        if i + WORKGROUP < end { put_words(i + WORKGROUP, b); }
    }
    for (var g = ids.local; g < X_GROUPS; g += WORKGROUP) { put_scale(g, packed_scales[packed_group(g)]); }
    workgroupBarrier();
}
