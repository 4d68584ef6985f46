// Softmax attention of GROUP query heads that share a kv head, of one row (y), over a share of what the row's sequence
// has stored. Along x: groups of heads, each with `splits` workgroups that divide the visible positions. With one split
// the output is final; otherwise sums, maxima and totals go to `parts`, and attention_join.wgsl puts them together.
// Online softmax over tiles of KEYS positions; PARTS neighbouring threads share a key, so that they read it in one run.
// Reads every visible key and value once per group of heads.
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
@group(0) @binding(7) var<storage, read_write> parts: array<vec4<f32>>;

const QUADS: u32 = HEAD_DIM / 4u;
// Workgroups of a row, but for the splits.
const GROUPS: u32 = HEADS / GROUP;
const HEADS_PER_KV: u32 = HEADS / KV_HEADS;
// Positions of a tile.
const KEYS: u32 = WORKGROUP / PARTS;
const QUADS_OF_PART: u32 = (QUADS + PARTS - 1u) / PARTS;
// Threads that share a quad of the output: each takes every SHARES-th position of a tile.
const SHARES: u32 = WORKGROUP / QUADS;
// Teams take the softmax of a head each, in as many rounds as that needs.
const HELPERS: u32 = WORKGROUP / TEAM;
const ROUNDS: u32 = (GROUP + HELPERS - 1u) / HELPERS;
const LOWEST: f32 = -3.0e38;

var<workgroup> query: array<vec4<f32>, GROUP * QUADS>;
// Scores of a tile by heads and parts of a key; then the weights, in the place of the first part.
var<workgroup> scores: array<f32, GROUP * WORKGROUP>;
var<workgroup> places: array<u32, KEYS>;
// What earlier tiles are multiplied by; at the end maxima and totals.
var<workgroup> kept: array<f32, GROUP>;
var<workgroup> maxima: array<f32, GROUP>;
var<workgroup> totals: array<f32, GROUP>;
var<workgroup> shares: array<vec4<f32>, WORKGROUP>;

// Where key and value of a position start.
fn place_of(span: u32, kv_head: u32, position: u32) -> u32 {
    let block = cache_block(span, CACHE_GROUP, position / 32u);
    return ((block * KV_HEADS + kv_head) * 32u + position % 32u) * QUADS;
}

// A quad of a key, zero beyond its end.
fn key_quad(place: u32, d: u32) -> vec4<f32> {
    if QUADS % (8u * PARTS) == 0u { return key4(place + d); }
    return select(vec4(0.0), key4(place + min(d, QUADS - 1u)), d < QUADS);
}

fn query_quad(head: u32, d: u32) -> vec4<f32> {
    if QUADS % (8u * PARTS) == 0u { return query[head * QUADS + d]; }
    return query[head * QUADS + min(d, QUADS - 1u)];
}

// What a part of the key at `place` adds to the scores of all heads: eight quads at a time, whose loads are on their way
// together.
fn score_key(place: u32, part: u32, key_index: u32) {
    for (var i = 0u; i < QUADS_OF_PART; i += 8u) {
        let d = part + PARTS * i;
        let k0 = key_quad(place, d);
        let k1 = key_quad(place, d + PARTS);
        let k2 = key_quad(place, d + 2u * PARTS);
        let k3 = key_quad(place, d + 3u * PARTS);
        let k4 = key_quad(place, d + 4u * PARTS);
        let k5 = key_quad(place, d + 5u * PARTS);
        let k6 = key_quad(place, d + 6u * PARTS);
        let k7 = key_quad(place, d + 7u * PARTS);
        for (var h = 0u; h < GROUP; h++) {
            let p = k0 * query_quad(h, d) + k1 * query_quad(h, d + PARTS) + k2 * query_quad(h, d + 2u * PARTS)
                + k3 * query_quad(h, d + 3u * PARTS) + k4 * query_quad(h, d + 4u * PARTS)
                + k5 * query_quad(h, d + 5u * PARTS) + k6 * query_quad(h, d + 6u * PARTS)
                + k7 * query_quad(h, d + 7u * PARTS);
            let at = h * WORKGROUP + part * KEYS + key_index;
            let sum = p.x + p.y + p.z + p.w;
            if i == 0u { scores[at] = sum; } else { scores[at] += sum; }
        }
    }
}

// Score of a head, which starts at `at` in `scores`, with a key.
fn whole_score(at: u32, key_index: u32) -> f32 {
    var score = 0.0;
    for (var part = 0u; part < PARTS; part++) { score += scores[at + part * KEYS + key_index]; }
    if SOFTCAP > 0.0 { score = SOFTCAP * tanh(clamp(score / SOFTCAP, -15.0, 15.0)); }
    return score;
}

// Weights of the positions `at` of a tile, which stand for i, i + SHARES, ...: zero beyond its `count` positions.
fn weights_at(head: u32, at: vec4<u32>, i: u32, count: u32) -> vec4<f32> {
    let base = head * WORKGROUP;
    let found = vec4(scores[base + at.x], scores[base + at.y], scores[base + at.z], scores[base + at.w]);
    return select(vec4(0.0), found, vec4(i, i + SHARES, i + 2u * SHARES, i + 3u * SHARES) < vec4(count));
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
    for (var i = ids.local; i < GROUP * QUADS; i += WORKGROUP) {
        query[i] = q[row * (Q_STRIDE / 4u) + first_head * QUADS + i] * SCALE;
    }
    let key_index = ids.local / PARTS;
    let part = ids.local % PARTS;
    let lane = team_lane(ids);
    let quad = ids.local % QUADS;
    let share = ids.local / QUADS;
    var sums: array<vec4<f32>, GROUP>;
    var top: array<f32, ROUNDS>;
    var total: array<f32, ROUNDS>;
    for (var r = 0u; r < ROUNDS; r++) { top[r] = LOWEST; }
    workgroupBarrier();
    for (var start = begin; start < stop; start += KEYS) {
        let count = min(KEYS, stop - start);
        if key_index < count {
            let place = place_of(span, kv_head, start + key_index);
            if part == 0u { places[key_index] = place; }
            score_key(place, part, key_index);
        }
        workgroupBarrier();
        for (var r = 0u; r < ROUNDS; r++) {
            let head = r * HELPERS + team_index(ids);
            let at = head * WORKGROUP;
            // Teams without a head have no positions.
            let mine = select(0u, count, head < GROUP);
            var highest = top[r];
            for (var i = lane; i < mine; i += TEAM) {
                let score = whole_score(at, i);
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
        for (var h = 0u; h < GROUP; h++) { sums[h] *= kept[h]; }
        if share < SHARES {
            // Eight positions at a time; of those beyond the end, the last one again, which counts nothing.
            for (var i = share; i < count; i += 8u * SHARES) {
                let at = min(vec4(i, i + SHARES, i + 2u * SHARES, i + 3u * SHARES), vec4(count - 1u));
                let j = i + 4u * SHARES;
                let at_high = min(vec4(j, j + SHARES, j + 2u * SHARES, j + 3u * SHARES), vec4(count - 1u));
                let v0 = value4(places[at.x] + quad);
                let v1 = value4(places[at.y] + quad);
                let v2 = value4(places[at.z] + quad);
                let v3 = value4(places[at.w] + quad);
                let v4 = value4(places[at_high.x] + quad);
                let v5 = value4(places[at_high.y] + quad);
                let v6 = value4(places[at_high.z] + quad);
                let v7 = value4(places[at_high.w] + quad);
                for (var h = 0u; h < GROUP; h++) {
                    let w = weights_at(h, at, i, count);
                    let x = weights_at(h, at_high, j, count);
                    sums[h] += (w.x * v0 + w.y * v1 + w.z * v2 + w.w * v3)
                        + (x.x * v4 + x.y * v5 + x.z * v6 + x.w * v7);
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
        shares[ids.local] = sums[h];
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
