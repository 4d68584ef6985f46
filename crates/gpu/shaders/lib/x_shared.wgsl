// The int8 copy of one activation row in workgroup memory, made by each workgroup for itself: normed first if NORM.
// A thread packs up to four quads of columns, WORKGROUP apart; written out, because loops over arrays stay loops.
struct Quads { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

const QUADS_PER_THREAD: u32 = (COLS4 + WORKGROUP - 1u) / WORKGROUP;

fn x_quad(quad: u32) -> vec4<f32> { return select(vec4(0.0), x[min(quad, COLS4 - 1u)], quad < COLS4); }

fn load_quads(thread: u32) -> Quads {
    var q = Quads(x_quad(thread), vec4(0.0), vec4(0.0), vec4(0.0));
    if QUADS_PER_THREAD > 1u { q.b = x_quad(thread + WORKGROUP); }
    if QUADS_PER_THREAD > 2u { q.c = x_quad(thread + 2u * WORKGROUP); }
    if QUADS_PER_THREAD > 3u { q.d = x_quad(thread + 3u * WORKGROUP); }
    return q;
}

fn weight_quads(thread: u32) -> Quads {
    let last = COLS4 - 1u;
    var q = Quads(norm_weight4(min(thread, last)), vec4(0.0), vec4(0.0), vec4(0.0));
    if QUADS_PER_THREAD > 1u { q.b = norm_weight4(min(thread + WORKGROUP, last)); }
    if QUADS_PER_THREAD > 2u { q.c = norm_weight4(min(thread + 2u * WORKGROUP, last)); }
    if QUADS_PER_THREAD > 3u { q.d = norm_weight4(min(thread + 3u * WORKGROUP, last)); }
    return q;
}

fn put_quad(quad: u32, group: u32, packed: Octet) {
    put_word(quad % 8u, group, packed.word);
    if quad % 8u == 0u { put_scale(group, packed.scale); }
}

// Packs one quad; eight neighbouring threads share its group of 32.
fn pack_quad(ids: Ids, v: vec4<f32>, quad: u32) {
    let packed = pack_octet(ids, v, octet_top(ids, v));
    if quad < COLS4 { put_quad(quad, quad / 8u, packed); }
    if CODES > 1u {
        let rest = pack_rest(ids, packed);
        if quad < COLS4 { put_quad(quad, quad / 8u + REST, rest); }
    }
}

// Fills the copy; the whole workgroup calls it together.
fn prepare_x(ids: Ids) {
    let thread = thread_index(ids);
    let q = load_quads(thread);
    let w = weight_quads(thread);
    var factor = 1.0;
    if NORM {
        let part = dot(q.a, q.a) + dot(q.b, q.b) + dot(q.c, q.c) + dot(q.d, q.d);
        factor = 1.0 / sqrt(group_sum(ids, part) / f32(WIDTH) + EPS);
    }
    pack_quad(ids, q.a * factor * w.a, thread);
    if QUADS_PER_THREAD > 1u { pack_quad(ids, q.b * factor * w.b, thread + WORKGROUP); }
    if QUADS_PER_THREAD > 2u { pack_quad(ids, q.c * factor * w.c, thread + 2u * WORKGROUP); }
    if QUADS_PER_THREAD > 3u { pack_quad(ids, q.d * factor * w.d, thread + 3u * WORKGROUP); }
    workgroupBarrier();
}
