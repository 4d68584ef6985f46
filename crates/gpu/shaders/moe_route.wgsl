// The experts of each token, best first, and their factors; then the shared expert, number EXPERTS, with its own.
// One workgroup per token (y). Reads one logit per expert and the row of the shared expert's gate.
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(5) var<storage, read_write> factors: array<f32>;

const PER_GROUP: u32 = EXPERTS / GROUPS;
// Below it are only the keys of experts that must not be chosen.
const LOWEST: f32 = -3.0e38;
const CLOSED: f32 = -3.3e38;

var<workgroup> keys: array<f32, EXPERTS>;
var<workgroup> ranks: array<f32, GROUPS>;
var<workgroup> best: array<u32, TOP_K>;

fn logit_of(token: u32, expert: u32) -> f32 { return logits[token * LOGIT_STRIDE + expert]; }

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

// The score of a logit; `top` and `total` are the largest logit and the sum of the exponentials.
fn score_of(logit: f32, top: f32, total: f32) -> f32 {
    if SIGMOID { return 1.0 / (1.0 + exp(-logit)); }
    return exp(logit - top) / total;
}

// Sum of the two best keys of a group of experts.
fn rank_of(group: u32) -> f32 {
    var first = CLOSED;
    var second = CLOSED;
    for (var e = group * PER_GROUP; e < (group + 1u) * PER_GROUP; e++) {
        second = max(second, min(first, keys[e]));
        first = max(first, keys[e]);
    }
    return first + second;
}

// Whether a group is among the KEPT best ones; of equals the lower index is.
fn is_kept(group: u32) -> bool {
    var better = 0u;
    for (var g = 0u; g < GROUPS; g++) {
        better += u32(ranks[g] > ranks[group] || (ranks[g] == ranks[group] && g < group));
    }
    return better < KEPT;
}

// How many experts come before one; of equals the lower index does.
fn place_of(expert: u32) -> u32 {
    let key = keys[expert];
    var before = 0u;
    for (var e = 0u; e < EXPERTS; e++) { before += u32(keys[e] > key || (keys[e] == key && e < expert)); }
    return before;
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let token = ids.group.y;
    var highest = LOWEST;
    var nans = 0.0;
    for (var e = ids.local; e < EXPERTS; e += WORKGROUP) {
        highest = max(highest, logit_of(token, e));
        nans += f32(is_nan(logit_of(token, e)));
    }
    let top = group_max(ids, highest);
    let bad = group_sum(ids, nans);
    var part = 0.0;
    for (var e = ids.local; e < EXPERTS; e += WORKGROUP) { part += exp(logit_of(token, e) - top); }
    let total = group_sum(ids, part);
    if GROUPS > 1u {
        for (var e = ids.local; e < EXPERTS; e += WORKGROUP) {
            keys[e] = score_of(logit_of(token, e), top, total) + bias_of_expert(e);
        }
        workgroupBarrier();
        for (var g = ids.local; g < GROUPS; g += WORKGROUP) { ranks[g] = rank_of(g); }
        workgroupBarrier();
    }
    for (var e = ids.local; e < EXPERTS; e += WORKGROUP) {
        // Without a bias the logits are in the order of the scores, and none of them are equal only by rounding.
        var key = logit_of(token, e);
        if BIASED { key = score_of(key, top, total) + bias_of_expert(e); }
        key = max(key, LOWEST);
        if GROUPS > 1u { key = select(CLOSED, key, is_kept(e / PER_GROUP)); }
        keys[e] = key;
    }
    for (var k = ids.local; k < TOP_K; k += WORKGROUP) { best[k] = k; }
    workgroupBarrier();
    for (var e = ids.local; e < EXPERTS; e += WORKGROUP) {
        let place = place_of(e);
        if place < TOP_K { best[place] = e; }
    }
    workgroupBarrier();
    var divisor = 1.0;
    if NORMALISE {
        divisor = EPS;
        for (var k = 0u; k < TOP_K; k++) { divisor += score_of(logit_of(token, best[k]), top, total); }
    }
    for (var k = ids.local; k < TOP_K; k += WORKGROUP) {
        let at = token * JOBS_STRIDE + k;
        let factor = score_of(logit_of(token, best[k]), top, total) / divisor * SCALE;
        chosen[at] = best[k];
        // A router that gives no number spoils the result; it does not hide.
        factors[at] = select(factor, bitcast<f32>(0x7fc00000u + u32(bad)), bad > 0.0);
    }
    if SHARED {
        let factor = shared_factor(ids, token);
        if ids.local == 0u {
            chosen[token * JOBS_STRIDE + TOP_K] = EXPERTS;
            factors[token * JOBS_STRIDE + TOP_K] = factor;
        }
    }
}
