// The int8 copy of one activation row, brought to workgroup memory.
@group(0) @binding(7) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> packed_scales: array<vec2<f32>>;

fn put_words(i: u32, four: vec4<u32>) {
    let at = (i % 2u) * 4u * BLOCKS + i / 2u;
    x_words[at] = four.x;
    x_words[at + BLOCKS] = four.y;
    x_words[at + 2u * BLOCKS] = four.z;
    x_words[at + 3u * BLOCKS] = four.w;
}

// Fills the copy; the whole workgroup calls it together. Two loads are on their way at a time.
fn prepare_x(ids: Ids) {
    let end = 2u * BLOCKS;
    for (var i = ids.local; i < end; i += 2u * WORKGROUP) {
        let a = x_codes[i];
        let b = x_codes[min(i + WORKGROUP, end - 1u)];
        put_words(i, a);
        if i + WORKGROUP < end { put_words(i + WORKGROUP, b); }
    }
    for (var g = ids.local; g < BLOCKS; g += WORKGROUP) { x_scales[g] = packed_scales[g]; }
    workgroupBarrier();
}
