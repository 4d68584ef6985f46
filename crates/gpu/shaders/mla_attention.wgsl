// Softmax attention over the compressed rows, which are keys and, but for their rope part, values too. x is a run of
// TILE_HEADS query heads that share every read, y a row, z one of SPLITS ranges of the visible keys. Gives Σ exp(score -
// top) c, not divided, and (top, Σ exp(score - top)) of each head and range; `mla_expand.wgsl` puts ranges together.
// Online softmax over tiles of 64 keys. Reads every visible key once per TILE_HEADS heads, and once more from cache.
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> latent: array<vec4<f32>>;
@group(0) @binding(3) var<storage, read_write> mixed: array<vec4<f32>>;
@group(0) @binding(6) var<storage, read_write> stats: array<vec2<f32>>;

const LOWEST: f32 = -3.0e38;
const RANK_QUADS: u32 = KV_RANK / 4u;
const KEY_QUADS: u32 = RANK_QUADS + ROPE_DIM / 4u;
const KEYS: u32 = 64u;
// Threads that share a key while scores are made.
const PARTS: u32 = WORKGROUP / KEYS;
// Threads that share a quad of the output; each takes every SHARES-th key.
const SHARES: u32 = WORKGROUP / RANK_QUADS;
// The softmax gives every head KEYS threads, and takes as many passes as that needs.
const PASSES: u32 = (TILE_HEADS + PARTS - 1u) / PARTS;

var<workgroup> query: array<vec4<f32>, TILE_HEADS * KEY_QUADS>;
// Scores by parts; later the shares of the output.
var<workgroup> scores: array<f32, TILE_HEADS * WORKGROUP>;
var<workgroup> shares: array<vec4<f32>, WORKGROUP>;
var<workgroup> places: array<u32, KEYS>;
var<workgroup> tops: array<f32, TILE_HEADS * 8u>;
var<workgroup> weights: array<f32, TILE_HEADS * KEYS>;
var<workgroup> kept: array<f32, TILE_HEADS>;

fn load_queries(ids: Ids, row: u32, first_head: u32) {
    for (var i = ids.local; i < TILE_HEADS * KEY_QUADS; i += WORKGROUP) {
        let head = min(first_head + i / KEY_QUADS, HEADS - 1u);
        let d = i % KEY_QUADS;
        if d < RANK_QUADS {
            query[i] = latent[(row * HEADS + head) * RANK_QUADS + d];
        } else {
            query[i] = q[row * Q_STRIDE4 + (head * Q_HEAD + NOPE_DIM) / 4u + d - RANK_QUADS];
        }
    }
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let first_head = ids.group.x * TILE_HEADS;
    let row = ids.group.y;
    let span = row_span(row);
    let visible = row_position(row) + 1u;
    // Whole tiles per range, so that ranges that are not the last have no idle threads.
    let length = ((visible + KEYS - 1u) / KEYS + SPLITS - 1u) / SPLITS * KEYS;
    let begin = min(ids.group.z * length, visible);
    let end = min(begin + length, visible);
    load_queries(ids, row, first_head);
    let scored = ids.local / PARTS;
    let part = ids.local % PARTS;
    let lane = ids.local % KEYS;
    let quad = ids.local % RANK_QUADS;
    let share = ids.local / RANK_QUADS;
    var sums: array<vec4<f32>, TILE_HEADS>;
    var top: array<f32, PASSES>;
    var total: array<f32, PASSES>;
    for (var p = 0u; p < PASSES; p++) { top[p] = LOWEST; }
    workgroupBarrier();
    for (var start = begin; start < end; start += KEYS) {
        let key = min(start + scored, end - 1u);
        let place = (cache_block(span, CACHE_GROUP, key / 32u) * 32u + key % 32u) * KEY_QUADS;
        if part == 0u { places[scored] = place; }
        var products: array<vec4<f32>, TILE_HEADS>;
        for (var d = part; d < KEY_QUADS; d += PARTS) {
            let k = key4(place + d);
            for (var h = 0u; h < TILE_HEADS; h++) { products[h] += k * query[h * KEY_QUADS + d]; }
        }
        for (var h = 0u; h < TILE_HEADS; h++) {
            scores[h * WORKGROUP + ids.local] = dot(products[h], vec4(1.0));
        }
        workgroupBarrier();
        var score: array<f32, PASSES>;
        for (var p = 0u; p < PASSES; p++) {
            let h = p * PARTS + ids.local / KEYS;
            if h < TILE_HEADS {
                // Eight threads find the highest of their eight scores, each for itself.
                var highest = LOWEST;
                let first = lane & 56u;
                for (var i = first; i < first + 8u; i++) {
                    var sum = 0.0;
                    for (var k = 0u; k < PARTS; k++) { sum += scores[h * WORKGROUP + i * PARTS + k]; }
                    let s = select(LOWEST, sum * SCALE, start + i < end);
                    highest = max(highest, s);
                    if i == lane { score[p] = s; }
                }
                if lane == first { tops[h * 8u + lane / 8u] = highest; }
            }
        }
        workgroupBarrier();
        for (var p = 0u; p < PASSES; p++) {
            let h = p * PARTS + ids.local / KEYS;
            if h < TILE_HEADS {
                var new_top = top[p];
                for (var i = 0u; i < 8u; i++) { new_top = max(new_top, tops[h * 8u + i]); }
                let weight = select(0.0, exp(score[p] - new_top), start + lane < end);
                let stays = exp(top[p] - new_top);
                total[p] = total[p] * stays + weight;
                top[p] = new_top;
                weights[h * KEYS + lane] = weight;
                if lane == 0u { kept[h] = stays; }
            }
        }
        workgroupBarrier();
        for (var h = 0u; h < TILE_HEADS; h++) { sums[h] *= kept[h]; }
        if share < SHARES {
            let count = min(KEYS, end - start);
            for (var i = share; i < count; i += SHARES) {
                let c = key4(places[i] + quad);
                for (var h = 0u; h < TILE_HEADS; h++) { sums[h] += weights[h * KEYS + i] * c; }
            }
        }
        // The next scores go where nobody reads now, but places, weights and kept are still in use.
        workgroupBarrier();
    }
    for (var h = 0u; h < TILE_HEADS; h++) {
        let head = first_head + h;
        let at = (row * HEADS + head) * SPLITS + ids.group.z;
        shares[ids.local] = sums[h];
        workgroupBarrier();
        if ids.local < RANK_QUADS && head < HEADS {
            var whole = vec4(0.0);
            for (var s = 0u; s < SHARES; s++) { whole += shares[s * RANK_QUADS + ids.local]; }
            mixed[at * RANK_QUADS + ids.local] = whole;
        }
        workgroupBarrier();
    }
    for (var p = 0u; p < PASSES; p++) {
        let h = p * PARTS + ids.local / KEYS;
        if h < TILE_HEADS { weights[h * KEYS + lane] = total[p]; }
        if h < TILE_HEADS && lane == 0u { kept[h] = top[p]; }
    }
    workgroupBarrier();
    if ids.local < TILE_HEADS && first_head + ids.local < HEADS {
        var whole = 0.0;
        for (var i = 0u; i < KEYS; i++) { whole += weights[ids.local * KEYS + i]; }
        stats[(row * HEADS + first_head + ids.local) * SPLITS + ids.group.z] = vec2(kept[ids.local], whole);
    }
}
