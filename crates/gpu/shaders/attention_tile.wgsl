// Softmax attention of VECTORS queries over everything their sequence has stored, causal. The queries of a span that
// share a kv head (x) are counted by row, then by head; a workgroup takes a run of them (y: the runs of all spans, and
// at most one more per span than there are). Online softmax over tiles of KEYS positions, which lie in one block of the
// cache; keys, then values pass through workgroup memory. Reads each key and value once per run.
@group(0) @binding(1) var<storage, read> q: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;

const QUADS: u32 = HEAD_DIM / 4u;
const HEADS_PER_KV: u32 = HEADS / KV_HEADS;
// A padded line, so that neighbouring lines start in other banks.
const LINE: u32 = QUADS + 1u;
// Sixteen threads share four queries: in the scores each takes every sixteenth key, in the output every sixteenth quad.
const ACROSS: u32 = 16u;
const VECTORS: u32 = WORKGROUP / 4u;
const FOURS: u32 = VECTORS / 4u;
const KEYS_EACH: u32 = KEYS / ACROSS;
const QUADS_EACH: u32 = (QUADS + ACROSS - 1u) / ACROSS;
// Four threads share the softmax of a query.
const KEYS_OF_FOUR: u32 = KEYS / 4u;
const LOWEST: f32 = -3.0e38;

var<workgroup> queries: array<vec4<f32>, VECTORS * LINE>;
// Keys of a tile, then its values.
var<workgroup> stored: array<vec4<f32>, KEYS * LINE>;
// [key][four queries]: scores, then weights.
var<workgroup> scores: array<vec4<f32>, KEYS * FOURS>;
// Maxima of four threads per query; at the end totals.
var<workgroup> quarters: array<f32, WORKGROUP>;
// What earlier tiles are multiplied by.
var<workgroup> kept: array<vec4<f32>, FOURS>;

// Span of run `index` and its first query there; a span that is none when there is no such run.
fn run_of(index: u32) -> vec2<u32> {
    var left = index;
    for (var span = 0u; span < step_spans(); span++) {
        let runs = (span_len(span) * HEADS_PER_KV + VECTORS - 1u) / VECTORS;
        if left < runs { return vec2(span, left * VECTORS); }
        left -= runs;
    }
    return vec2(step_spans(), 0u);
}

// A query of a run of `count` that starts with query `first` of a span and kv head.
struct Query { span: u32, kv_head: u32, first: u32, count: u32, index: u32 }

// Writes a quad of a query's output; its total stands in `quarters`.
fn put_query(query: Query, quad: u32, sum: vec4<f32>) {
    if query.index >= query.count || quad >= QUADS { return; }
    let i = 4u * query.index;
    let total = quarters[i] + quarters[i + 1u] + quarters[i + 2u] + quarters[i + 3u];
    let vector = query.first + query.index;
    let row = span_first_row(query.span) + vector / HEADS_PER_KV;
    let head = query.kv_head * HEADS_PER_KV + vector % HEADS_PER_KV;
    let at = row * (OUT_STRIDE / 4u) + head * QUADS + quad;
    out[at] = sum / total * gate4(at) * mask_of(head);
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let kv_head = ids.group.x;
    let found = run_of(ids.group.y);
    if found.x >= step_spans() { return; }
    let span = found.x;
    let first = found.y;
    let count = min(span_len(span) * HEADS_PER_KV - first, VECTORS);
    let first_row = span_first_row(span);
    let start_position = span_start(span);
    let first_head = kv_head * HEADS_PER_KV;
    for (var i = ids.local; i < VECTORS * QUADS; i += WORKGROUP) {
        let vector = first + min(i / QUADS, count - 1u);
        let row = first_row + vector / HEADS_PER_KV;
        let head = first_head + vector % HEADS_PER_KV;
        queries[i / QUADS * LINE + i % QUADS] = q[row * (Q_STRIDE / 4u) + head * QUADS + i % QUADS] * SCALE;
    }
    // Positions of the first and the last query.
    let lowest = start_position + first / HEADS_PER_KV;
    let highest = start_position + (first + count - 1u) / HEADS_PER_KV;
    let visible = select(0u, lowest + 1u - min(lowest + 1u, WINDOW), WINDOW > 0u);
    let across = ids.local % ACROSS;
    let four = ids.local / ACROSS;
    // Of the softmax: a query and a quarter of the keys.
    let mine = ids.local / 4u;
    let quarter = ids.local % 4u;
    let my_position = start_position + (first + min(mine, count - 1u)) / HEADS_PER_KV;
    var top = LOWEST;
    var total = 0.0;
    var sums_a: array<vec4<f32>, QUADS_EACH>;
    var sums_b: array<vec4<f32>, QUADS_EACH>;
    var sums_c: array<vec4<f32>, QUADS_EACH>;
    var sums_e: array<vec4<f32>, QUADS_EACH>;
    for (var tile = visible / KEYS * KEYS; tile <= highest; tile += KEYS) {
        let block = cache_block(span, CACHE_GROUP, tile / 32u);
        let base = ((block * KV_HEADS + kv_head) * 32u + tile % 32u) * QUADS;
        for (var i = ids.local; i < KEYS * QUADS; i += WORKGROUP) {
            stored[i / QUADS * LINE + i % QUADS] = key4(base + i);
        }
        workgroupBarrier();
        for (var n = 0u; n < KEYS_EACH; n++) {
            let key = across + ACROSS * n;
            var a = vec4(0.0);
            var b = vec4(0.0);
            var c = vec4(0.0);
            var e = vec4(0.0);
            let at = 4u * four * LINE;
            for (var d = 0u; d < QUADS; d++) {
                let k = stored[key * LINE + d];
                a += queries[at + d] * k;
                b += queries[at + LINE + d] * k;
                c += queries[at + 2u * LINE + d] * k;
                e += queries[at + 3u * LINE + d] * k;
            }
            var four_scores = vec4(a.x + a.y + a.z + a.w, b.x + b.y + b.z + b.w, c.x + c.y + c.z + c.w,
                e.x + e.y + e.z + e.w);
            if SOFTCAP > 0.0 { four_scores = SOFTCAP * tanh(clamp(four_scores / SOFTCAP, vec4(-15.0), vec4(15.0))); }
            scores[key * FOURS + four] = four_scores;
        }
        workgroupBarrier();
        var my_scores: array<f32, KEYS_OF_FOUR>;
        var my_top = top;
        for (var n = 0u; n < KEYS_OF_FOUR; n++) {
            let position = tile + 4u * n + quarter;
            let seen = position <= my_position && (WINDOW == 0u || position + WINDOW > my_position);
            my_scores[n] = select(LOWEST, scores[(4u * n + quarter) * FOURS + mine / 4u][mine % 4u], seen);
            my_top = max(my_top, my_scores[n]);
        }
        quarters[ids.local] = my_top;
        // The keys are no longer needed. What stands behind the last position may be anything.
        for (var i = ids.local; i < KEYS * QUADS; i += WORKGROUP) {
            stored[i / QUADS * LINE + i % QUADS] = select(vec4(0.0), value4(base + i), tile + i / QUADS <= highest);
        }
        workgroupBarrier();
        let new_top = max(max(quarters[4u * mine], quarters[4u * mine + 1u]),
            max(quarters[4u * mine + 2u], quarters[4u * mine + 3u]));
        let factor = exp(top - new_top);
        total *= factor;
        top = new_top;
        if quarter == 0u { kept[mine / 4u][mine % 4u] = factor; }
        for (var n = 0u; n < KEYS_OF_FOUR; n++) {
            // A tile may hide all its keys from a query: its maximum is then as low as their scores.
            let weight = select(0.0, exp(my_scores[n] - new_top), my_scores[n] > LOWEST);
            scores[(4u * n + quarter) * FOURS + mine / 4u][mine % 4u] = weight;
            total += weight;
        }
        workgroupBarrier();
        let factors = kept[four];
        for (var n = 0u; n < QUADS_EACH; n++) {
            let quad = min(across + ACROSS * n, QUADS - 1u);
            var a = sums_a[n] * factors.x;
            var b = sums_b[n] * factors.y;
            var c = sums_c[n] * factors.z;
            var e = sums_e[n] * factors.w;
            for (var key = 0u; key < KEYS; key++) {
                let weights = scores[key * FOURS + four];
                let value = stored[key * LINE + quad];
                a += weights.x * value;
                b += weights.y * value;
                c += weights.z * value;
                e += weights.w * value;
            }
            sums_a[n] = a;
            sums_b[n] = b;
            sums_c[n] = c;
            sums_e[n] = e;
        }
        workgroupBarrier();
    }
    quarters[ids.local] = total;
    workgroupBarrier();
    for (var n = 0u; n < QUADS_EACH; n++) {
        let quad = across + ACROSS * n;
        put_query(Query(span, kv_head, first, count, 4u * four), quad, sums_a[n]);
        put_query(Query(span, kv_head, first, count, 4u * four + 1u), quad, sums_b[n]);
        put_query(Query(span, kv_head, first, count, 4u * four + 2u), quad, sums_c[n]);
        put_query(Query(span, kv_head, first, count, 4u * four + 3u), quad, sums_e[n]);
    }
}
