// Softmax attention of GROUP query heads that share a kv head, of one row (y), over a share of what the row's sequence
// has stored. Along x: groups of heads, each with `splits` workgroups that divide the visible positions. With one split
// the output is final; otherwise sums, maxima and totals go to `parts`, and attention_join.wgsl puts them together.
// Online softmax over tiles of KEYS positions. PARTS neighbouring threads share a key, so that they read it in one run:
// each has up to two of its quads, and those of the queries in registers, since keys pass too fast for queries in
// workgroup memory. Heads are written out: arrays in loops would go to memory. The loads of a tile's keys are on their
// way together, and those of its values.
// Reads every visible key and value once per group of heads.
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;

const QUADS: u32 = HEAD_DIM / 4u;
// Workgroups of a row, but for the splits.
const GROUPS: u32 = HEADS / GROUP;
const HEADS_PER_KV: u32 = HEADS / KV_HEADS;
// Positions of a tile, in PASSES (1, 2 or 4) positions per thread.
const KEYS_OF_PASS: u32 = WORKGROUP / PARTS;
const KEYS: u32 = PASSES * KEYS_OF_PASS;
// Scores of a head in a tile: [part][key].
const LINE: u32 = PARTS * KEYS;
// Threads that share a quad of the output: each takes every SHARES-th position of a tile.
const SHARES: u32 = WORKGROUP / QUADS;
const VALUES_AT_ONCE: u32 = max(2u * PASSES, 4u);
// Teams take the softmax of a head each, in as many rounds as that needs.
const HELPERS: u32 = WORKGROUP / TEAM;
const ROUNDS: u32 = (GROUP + HELPERS - 1u) / HELPERS;
const LOWEST: f32 = -3.0e38;

// Scores of a tile by heads, parts of a key and keys; then the weights, in the place of the first part.
var<workgroup> scores: array<f32, GROUP * LINE>;
var<workgroup> places: array<u32, KEYS>;
// What earlier tiles are multiplied by; at the end maxima and totals.
var<workgroup> kept: array<f32, GROUP>;
var<workgroup> maxima: array<f32, GROUP>;
var<workgroup> totals: array<f32, GROUP>;
var<workgroup> shares: array<vec4<f32>, WORKGROUP>;

// A quad of each head.
struct Heads {
    a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32>,
}

fn no_heads() -> Heads {
    let none = vec4(0.0);
    return Heads(none, none, none, none, none, none, none, none);
}

// The quad of head `index`.
fn head_of(heads: Heads, index: u32) -> vec4<f32> {
    var quad = heads.a;
    if GROUP > 1u && index == 1u { quad = heads.b; }
    if GROUP > 2u && index == 2u { quad = heads.c; }
    if GROUP > 3u && index == 3u { quad = heads.d; }
    if GROUP > 4u && index == 4u { quad = heads.e; }
    if GROUP > 5u && index == 5u { quad = heads.f; }
    if GROUP > 6u && index == 6u { quad = heads.g; }
    if GROUP > 7u && index == 7u { quad = heads.h; }
    return quad;
}

// Quad `d` of a head's query; zero beyond its end.
fn query_quad(row: u32, head: u32, d: u32) -> vec4<f32> {
    let quad = q[row * (Q_STRIDE / 4u) + head * QUADS + min(d, QUADS - 1u)] * SCALE;
    return select(vec4(0.0), quad, d < QUADS);
}

fn query_quads(row: u32, head: u32, d: u32) -> Heads {
    var heads = no_heads();
    heads.a = query_quad(row, head, d);
    if GROUP > 1u { heads.b = query_quad(row, head + 1u, d); }
    if GROUP > 2u { heads.c = query_quad(row, head + 2u, d); }
    if GROUP > 3u { heads.d = query_quad(row, head + 3u, d); }
    if GROUP > 4u { heads.e = query_quad(row, head + 4u, d); }
    if GROUP > 5u { heads.f = query_quad(row, head + 5u, d); }
    if GROUP > 6u { heads.g = query_quad(row, head + 6u, d); }
    if GROUP > 7u { heads.h = query_quad(row, head + 7u, d); }
    return heads;
}

// Where key and value of a position start.
fn place_of(span: u32, kv_head: u32, position: u32) -> u32 {
    let block = cache_block(span, CACHE_GROUP, position / 32u);
    return ((block * KV_HEADS + kv_head) * 32u + position % 32u) * QUADS;
}

// A part of a key; the queries are zero where it has no second quad.
struct Key { low: vec4<f32>, high: vec4<f32> }

fn load_key(place: u32, part: u32) -> Key {
    return Key(key4(place + min(part, QUADS - 1u)), key4(place + min(part + PARTS, QUADS - 1u)));
}

// What a part of a key adds to the scores of all heads; `at` is its place in a line.
fn put_scores(at: u32, key: Key, low: Heads, high: Heads) {
    scores[at] = dot(key.low, low.a) + dot(key.high, high.a);
    if GROUP > 1u { scores[at + LINE] = dot(key.low, low.b) + dot(key.high, high.b); }
    if GROUP > 2u { scores[at + 2u * LINE] = dot(key.low, low.c) + dot(key.high, high.c); }
    if GROUP > 3u { scores[at + 3u * LINE] = dot(key.low, low.d) + dot(key.high, high.d); }
    if GROUP > 4u { scores[at + 4u * LINE] = dot(key.low, low.e) + dot(key.high, high.e); }
    if GROUP > 5u { scores[at + 5u * LINE] = dot(key.low, low.f) + dot(key.high, high.f); }
    if GROUP > 6u { scores[at + 6u * LINE] = dot(key.low, low.g) + dot(key.high, high.g); }
    if GROUP > 7u { scores[at + 7u * LINE] = dot(key.low, low.h) + dot(key.high, high.h); }
}

fn four_scores(at: u32) -> f32 {
    return scores[at] + scores[at + KEYS] + scores[at + 2u * KEYS] + scores[at + 3u * KEYS];
}

// Score whose first part is at `at`.
fn whole_score(at: u32) -> f32 {
    var score = scores[at];
    if PARTS == 2u { score += scores[at + KEYS]; }
    if PARTS > 2u { score = four_scores(at); }
    if PARTS > 4u { score += four_scores(at + 4u * KEYS); }
    if PARTS > 8u { score += four_scores(at + 8u * KEYS) + four_scores(at + 12u * KEYS); }
    for (var part = 16u; part < PARTS; part += 4u) { score += four_scores(at + part * KEYS); }
    if SOFTCAP > 0.0 { score = SOFTCAP * tanh(clamp(score / SOFTCAP, -15.0, 15.0)); }
    return score;
}

// Positions i, i + SHARES, ... of a tile of `count`; of those beyond its end, the last one again.
fn four_places(i: u32, count: u32) -> vec4<u32> {
    return min(vec4(i, i + SHARES, i + 2u * SHARES, i + 3u * SHARES), vec4(count - 1u));
}

struct Values { a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32> }

fn load_values(i: u32, count: u32, quad: u32) -> Values {
    let at = four_places(i, count);
    return Values(value4(places[at.x] + quad), value4(places[at.y] + quad), value4(places[at.z] + quad),
        value4(places[at.w] + quad));
}

// What four positions add to a head's sums; nothing beyond the tile's end.
fn weighted(head: u32, i: u32, count: u32, values: Values) -> vec4<f32> {
    let at = four_places(i, count) + vec4(head * LINE);
    let found = vec4(scores[at.x], scores[at.y], scores[at.z], scores[at.w]);
    let w = select(vec4(0.0), found, vec4(i, i + SHARES, i + 2u * SHARES, i + 3u * SHARES) < vec4(count));
    return (w.x * values.a + w.y * values.b) + (w.z * values.c + w.w * values.d);
}

fn add_values(before: Heads, i: u32, count: u32, values: Values) -> Heads {
    var sums = before;
    sums.a += weighted(0u, i, count, values);
    if GROUP > 1u { sums.b += weighted(1u, i, count, values); }
    if GROUP > 2u { sums.c += weighted(2u, i, count, values); }
    if GROUP > 3u { sums.d += weighted(3u, i, count, values); }
    if GROUP > 4u { sums.e += weighted(4u, i, count, values); }
    if GROUP > 5u { sums.f += weighted(5u, i, count, values); }
    if GROUP > 6u { sums.g += weighted(6u, i, count, values); }
    if GROUP > 7u { sums.h += weighted(7u, i, count, values); }
    return sums;
}

fn keep(before: Heads) -> Heads {
    var sums = before;
    sums.a *= kept[0];
    if GROUP > 1u { sums.b *= kept[min(1u, GROUP - 1u)]; }
    if GROUP > 2u { sums.c *= kept[min(2u, GROUP - 1u)]; }
    if GROUP > 3u { sums.d *= kept[min(3u, GROUP - 1u)]; }
    if GROUP > 4u { sums.e *= kept[min(4u, GROUP - 1u)]; }
    if GROUP > 5u { sums.f *= kept[min(5u, GROUP - 1u)]; }
    if GROUP > 6u { sums.g *= kept[min(6u, GROUP - 1u)]; }
    if GROUP > 7u { sums.h *= kept[min(7u, GROUP - 1u)]; }
    return sums;
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let splits = ids.groups.x / GROUPS;
    let first_head = (ids.group.x / splits) * GROUP;
    let split = ids.group.x % splits;
    let kv_head = first_head / HEADS_PER_KV;
    let row = ids.group.y;
    let span = row_span(row);
    let end = row_position(row) + 1u;
    let first = select(0u, end - min(end, WINDOW), WINDOW > 0u);
    // Whole blocks of 32 positions per split.
    let each = ((end - first + splits - 1u) / splits + 31u) / 32u * 32u;
    let begin = min(first + split * each, end);
    let stop = min(begin + each, end);
    let part = ids.local % PARTS;
    let lane = team_lane(ids);
    let quad = ids.local % QUADS;
    let share = ids.local / QUADS;
    let low = query_quads(row, first_head, part);
    let high = query_quads(row, first_head, part + PARTS);
    // This thread's position in each pass, and its part of the first one's scores.
    let k = ids.local / PARTS;
    let line_at = part * KEYS + k;
    var sums = no_heads();
    var top: array<f32, ROUNDS>;
    var total: array<f32, ROUNDS>;
    for (var r = 0u; r < ROUNDS; r++) { top[r] = LOWEST; }
    for (var start = begin; start < stop; start += KEYS) {
        let count = min(KEYS, stop - start);
        // Beyond the end the last position again, whose scores nobody reads.
        let last = stop - 1u;
        let p0 = place_of(span, kv_head, min(start + k, last));
        var p1 = p0;
        var p2 = p0;
        var p3 = p0;
        if PASSES > 1u { p1 = place_of(span, kv_head, min(start + k + KEYS_OF_PASS, last)); }
        if PASSES > 2u {
            p2 = place_of(span, kv_head, min(start + k + 2u * KEYS_OF_PASS, last));
            p3 = place_of(span, kv_head, min(start + k + 3u * KEYS_OF_PASS, last));
        }
        let key0 = load_key(p0, part);
        var key1 = key0;
        var key2 = key0;
        var key3 = key0;
        if PASSES > 1u { key1 = load_key(p1, part); }
        if PASSES > 2u {
            key2 = load_key(p2, part);
            key3 = load_key(p3, part);
        }
        put_scores(line_at, key0, low, high);
        if PASSES > 1u { put_scores(line_at + KEYS_OF_PASS, key1, low, high); }
        if PASSES > 2u {
            put_scores(line_at + 2u * KEYS_OF_PASS, key2, low, high);
            put_scores(line_at + 3u * KEYS_OF_PASS, key3, low, high);
        }
        if part == 0u {
            places[k] = p0;
            if PASSES > 1u { places[k + KEYS_OF_PASS] = p1; }
            if PASSES > 2u {
                places[k + 2u * KEYS_OF_PASS] = p2;
                places[k + 3u * KEYS_OF_PASS] = p3;
            }
        }
        workgroupBarrier();
        for (var r = 0u; r < ROUNDS; r++) {
            let head = r * HELPERS + team_index(ids);
            let at = head * LINE;
            // Teams without a head have no positions.
            let mine = select(0u, count, head < GROUP);
            var highest = top[r];
            for (var i = lane; i < mine; i += TEAM) {
                let score = whole_score(at + i);
                scores[at + i] = score;
                highest = max(highest, score);
            }
            highest = team_max(ids, highest);
            if head < GROUP {
                let factor = exp(top[r] - highest);
                total[r] *= factor;
                for (var i = lane; i < mine; i += TEAM) {
                    let weight = exp(scores[at + i] - highest);
                    scores[at + i] = weight;
                    total[r] += weight;
                }
                if lane == 0u { kept[head] = factor; }
            }
            top[r] = highest;
        }
        workgroupBarrier();
        sums = keep(sums);
        if share < SHARES {
            for (var i = share; i < count; i += VALUES_AT_ONCE * SHARES) {
                let values = load_values(i, count, quad);
                if VALUES_AT_ONCE > 4u {
                    let more = load_values(i + 4u * SHARES, count, quad);
                    sums = add_values(add_values(sums, i, count, values), i + 4u * SHARES, count, more);
                } else {
                    sums = add_values(sums, i, count, values);
                }
            }
        }
        workgroupBarrier();
    }
    for (var r = 0u; r < ROUNDS; r++) {
        let head = r * HELPERS + team_index(ids);
        let whole = team_sum(ids, total[r]);
        if head < GROUP && lane == 0u {
            maxima[head] = top[r];
            totals[head] = whole;
        }
    }
    for (var h = 0u; h < GROUP; h++) {
        shares[ids.local] = head_of(sums, h);
        workgroupBarrier();
        if ids.local < QUADS {
            var whole = vec4(0.0);
            for (var s = 0u; s < SHARES; s++) { whole += shares[s * QUADS + ids.local]; }
            let head = first_head + h;
            if splits == 1u {
                let at = row * (OUT_STRIDE / 4u) + head * QUADS + ids.local;
                out[at] = whole / totals[h] * gate4(at) * mask_of(head);
            } else {
                // QUADS of sums, then maximum, total and the number of splits.
                let at = ((split * step_rows() + row) * HEADS + head) * (QUADS + 1u);
                parts[at + ids.local] = whole;
                if ids.local == 0u { parts[at + QUADS] = vec4(maxima[h], totals[h], f32(splits), 0.0); }
            }
        }
        workgroupBarrier();
    }
}
