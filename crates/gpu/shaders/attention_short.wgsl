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
const QUADS_OF_PART: u32 = (QUADS + PARTS - 1u) / PARTS;
const BLOCKS_OF_CONTEXT: u32 = CONTEXT / 32u + 1u;
// Threads that share a quad of the output.
const SHARES: u32 = WORKGROUP / QUADS;
const LOWEST: f32 = -3.0e38;

var<workgroup> raw: array<f32, 3u * HEAD_DIM>;
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
    let angle = rope_angle(ROPE, PAIRS, 0u, pair);
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

// Norms of query, key and value where the model has them.
fn norm_raw(ids: Ids) {
    var squares = vec3(0.0);
    for (var i = ids.local; i < HEAD_DIM; i += WORKGROUP) {
        let x = vec3(raw[i], raw[HEAD_DIM + i], raw[2u * HEAD_DIM + i]);
        squares += x * x;
    }
    if QK_NORM {
        let q_factor = 1.0 / sqrt(group_sum(ids, squares.x) / f32(HEAD_DIM) + EPS);
        let k_factor = 1.0 / sqrt(group_sum(ids, squares.y) / f32(HEAD_DIM) + EPS);
        for (var i = ids.local; i < HEAD_DIM; i += WORKGROUP) {
            raw[i] *= q_factor * q_weight(i);
            raw[HEAD_DIM + i] *= k_factor * k_weight(i);
        }
    }
    if VALUE_NORM {
        let v_factor = 1.0 / sqrt(group_sum(ids, squares.z) / f32(HEAD_DIM) + VALUE_EPS);
        for (var i = ids.local; i < HEAD_DIM; i += WORKGROUP) { raw[2u * HEAD_DIM + i] *= v_factor; }
    }
    workgroupBarrier();
}

// Where key and value of a position start; `first` is the oldest visible one.
fn place_of(first: u32, position: u32) -> u32 {
    return starts[position / 32u - first / 32u] + (position % 32u) * QUADS;
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
    for (var i = ids.local; i < HEAD_DIM; i += WORKGROUP) {
        raw[i] = q[head * HEAD_DIM + i];
        raw[HEAD_DIM + i] = k[kv_head * HEAD_DIM + i];
        raw[2u * HEAD_DIM + i] = v[kv_head * HEAD_DIM + i];
    }
    workgroupBarrier();
    norm_raw(ids);
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
        if i < count {
            let place = place_of(first, first + i);
            for (var n = 0u; n < QUADS_OF_PART; n++) {
                let d = n * PARTS + part;
                if d < QUADS { products += query[d] * key4(place + d); }
            }
        } else if i == count {
            for (var d = part; d < QUADS; d += PARTS) { products += query[d] * new_key[d]; }
        }
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
        // Four values on their way at a time; beyond the end, the last one with weight 0.
        for (var start = share; start < count; start += 4u * SHARES) {
            for (var n = 0u; n < 4u; n++) {
                let i = start + n * SHARES;
                let weight = select(0.0, scores[min(i, count)], i < count);
                sum += weight * value4(place_of(first, first + min(i, count - 1u)) + quad);
            }
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
