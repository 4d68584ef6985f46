// One token with a short context: norms and rotates one query head and its key head, stores key and value, and attends,
// in one workgroup per query head (x). All scores stay in workgroup memory, so that the softmax takes one pass.
// Reads every visible key and value of the head once, and the new ones from the projections.
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(8) var<storage, read> k: array<f32>;
@group(0) @binding(9) var<storage, read> v: array<f32>;

const QUADS: u32 = HEAD_DIM / 4u;
const HEADS_PER_KV: u32 = HEADS / KV_HEADS;
// Threads that share a key, and positions of a pass.
const PARTS: u32 = 8u;
const KEYS: u32 = WORKGROUP / PARTS;
const BLOCKS_OF_CONTEXT: u32 = CONTEXT / 32u + 1u;
// Threads that share a quad of the output.
const SHARES: u32 = WORKGROUP / QUADS;
const LOWEST: f32 = -3.0e38;

var<workgroup> raw: array<f32, 3u * HEAD_DIM>;
var<workgroup> angles: array<vec2<f32>, max(PAIRS, 1u)>;
var<workgroup> query: array<vec4<f32>, QUADS>;
var<workgroup> new_key: array<vec4<f32>, QUADS>;
var<workgroup> scores: array<f32, CONTEXT>;
// Where the heads of this kv head start in the cache, per block of 32 positions.
var<workgroup> starts: array<u32, BLOCKS_OF_CONTEXT>;
var<workgroup> shares: array<vec4<f32>, WORKGROUP>;

// A rotated component of the head that starts at `base` in `raw`.
fn rotated(base: u32, i: u32) -> f32 {
    if i >= 2u * PAIRS { return raw[base + i]; }
    let pair = i % max(PAIRS, 1u);
    let angle = angles[pair];
    var a: f32;
    var b: f32;
    if INTERLEAVED {
        a = raw[base + 2u * pair];
        b = raw[base + 2u * pair + 1u];
    } else {
        a = raw[base + pair];
        b = raw[base + pair + PAIRS];
    }
    if i < PAIRS { return a * angle.x - b * angle.y; }
    return b * angle.x + a * angle.y;
}

fn rotated4(base: u32, quad: u32) -> vec4<f32> {
    let i = 4u * quad;
    return vec4(rotated(base, i), rotated(base, i + 1u), rotated(base, i + 2u), rotated(base, i + 3u));
}

fn capped(score: f32) -> f32 {
    if SOFTCAP > 0.0 { return SOFTCAP * tanh(clamp(score / SOFTCAP, -15.0, 15.0)); }
    return score;
}

// Brings query, key and value of the head to `raw`, normed where the model norms them, and the angles.
fn load_raw(ids: Ids, head: u32, kv_head: u32) {
    // Heads are no wider than the workgroup.
    let i = min(ids.local, HEAD_DIM - 1u);
    let live = ids.local < HEAD_DIM;
    var x = vec3(q[head * HEAD_DIM + i], k[kv_head * HEAD_DIM + i], v[kv_head * HEAD_DIM + i]);
    let weights = vec3(q_weight(i), k_weight(i), 1.0);
    if ids.local < PAIRS { angles[ids.local] = rope_angle(ROPE, PAIRS, 0u, ids.local); }
    let squares = select(vec3(0.0), x * x, live);
    if QK_NORM {
        let q_mean = group_sum(ids, squares.x) / f32(HEAD_DIM);
        let k_mean = group_sum(ids, squares.y) / f32(HEAD_DIM);
        x *= vec3(1.0 / sqrt(q_mean + EPS), 1.0 / sqrt(k_mean + EPS), 1.0) * weights;
    }
    if VALUE_NORM { x.z *= 1.0 / sqrt(group_sum(ids, squares.z) / f32(HEAD_DIM) + VALUE_EPS); }
    if live {
        raw[i] = x.x;
        raw[HEAD_DIM + i] = x.y;
        raw[2u * HEAD_DIM + i] = x.z;
    }
    workgroupBarrier();
}

// Where key and value of a position start; `first` is the oldest visible one.
fn place_of(first: u32, position: u32) -> u32 {
    return starts[position / 32u - first / 32u] + (position % 32u) * QUADS;
}

// A part's share of the products of the query with the key at `place`: every PARTS-th quad, four loads at a time.
fn key_products(place: u32, part: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    for (var d = part; d < QUADS; d += 4u * PARTS) {
        let last = QUADS - 1u;
        let b = min(d + PARTS, last);
        let c = min(d + 2u * PARTS, last);
        let e = min(d + 3u * PARTS, last);
        let key_a = key4(place + d);
        let key_b = key4(place + b);
        let key_c = key4(place + c);
        let key_e = key4(place + e);
        sum += query[d] * key_a;
        if d + PARTS < QUADS { sum += query[b] * key_b; }
        if d + 2u * PARTS < QUADS { sum += query[c] * key_c; }
        if d + 3u * PARTS < QUADS { sum += query[e] * key_e; }
    }
    return sum;
}

fn new_key_products(part: u32) -> vec4<f32> {
    var sum = vec4(0.0);
    for (var d = part; d < QUADS; d += PARTS) { sum += query[d] * new_key[d]; }
    return sum;
}

fn new_value4(quad: u32) -> vec4<f32> {
    let i = 2u * HEAD_DIM + 4u * quad;
    return vec4(raw[i], raw[i + 1u], raw[i + 2u], raw[i + 3u]);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let head = ids.group.x;
    let kv_head = head / HEADS_PER_KV;
    let position = row_position(0u);
    let first = select(0u, position + 1u - min(position + 1u, WINDOW), WINDOW > 0u);
    // Older positions; the new one comes from workgroup memory.
    let count = position - first;
    for (var b = ids.local; b <= position / 32u - first / 32u; b += WORKGROUP) {
        starts[b] = (cache_block(0u, CACHE_GROUP, first / 32u + b) * KV_HEADS + kv_head) * 32u * QUADS;
    }
    load_raw(ids, head, kv_head);
    for (var d = ids.local; d < QUADS; d += WORKGROUP) {
        query[d] = rotated4(0u, d) * SCALE;
        let key = rotated4(HEAD_DIM, d);
        new_key[d] = key;
        if head % HEADS_PER_KV == 0u {
            let at = place_of(first, position) + d;
            put_key4(at, key);
            put_value4(at, new_value4(d));
        }
    }
    workgroupBarrier();
    let thread = thread_index(ids);
    let part = thread % PARTS;
    for (var start = 0u; start <= count; start += KEYS) {
        let i = start + thread / PARTS;
        var products = vec4(0.0);
        if i < count { products = key_products(place_of(first, first + i), part); }
        if i == count { products = new_key_products(part); }
        let score = octet_sum_f32(ids, products.x + products.y + products.z + products.w);
        if part == 0u && i <= count { scores[i] = capped(score); }
    }
    workgroupBarrier();
    var top = LOWEST;
    for (var i = ids.local; i <= count; i += WORKGROUP) { top = max(top, scores[i]); }
    top = group_max(ids, top);
    var total = 0.0;
    for (var i = ids.local; i <= count; i += WORKGROUP) {
        let weight = exp(scores[i] - top);
        scores[i] = weight;
        total += weight;
    }
    total = group_sum(ids, total);
    // `group_sum` has a barrier after the weights were written.
    let quad = ids.local % QUADS;
    let share = ids.local / QUADS;
    var sum = vec4(0.0);
    if share < SHARES {
        for (var i = share; i < count; i += 4u * SHARES) {
            // Four values on their way at a time; beyond the end, the last one with weight 0.
            let last = count - 1u;
            let b = i + SHARES;
            let c = i + 2u * SHARES;
            let d = i + 3u * SHARES;
            let value_a = value4(place_of(first, first + i) + quad);
            let value_b = value4(place_of(first, first + min(b, last)) + quad);
            let value_c = value4(place_of(first, first + min(c, last)) + quad);
            let value_d = value4(place_of(first, first + min(d, last)) + quad);
            sum += scores[i] * value_a;
            sum += select(0.0, scores[min(b, last)], b < count) * value_b;
            sum += select(0.0, scores[min(c, last)], c < count) * value_c;
            sum += select(0.0, scores[min(d, last)], d < count) * value_d;
        }
        if share == 0u { sum += scores[count] * new_value4(quad); }
    }
    shares[ids.local] = sum;
    workgroupBarrier();
    if ids.local < QUADS {
        var whole = vec4(0.0);
        for (var s = 0u; s < SHARES; s++) { whole += shares[s * QUADS + ids.local]; }
        let at = head * QUADS + ids.local;
        out[at] = whole / total * gate4(at) * mask_of(head);
    }
}
