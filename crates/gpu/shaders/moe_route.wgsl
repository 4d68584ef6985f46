// The experts of each token, best first, and their factors; then the shared expert, number EXPERTS, with its own.
// One workgroup per token (y). Reads one logit per expert and the row of the shared expert's gate.
//
// The choice takes two rounds: the best of each set of 32 experts, then the best of those. It compares integers that
// are in the order of the floats, so that the places are always a permutation. All is written out where it can be:
// compilers rarely unroll loops, and every turn of one waits for its loads.
@group(0) @binding(2) var<storage, read> logits: array<f32>;
@group(0) @binding(4) var<storage, read_write> chosen: array<u32>;
@group(0) @binding(5) var<storage, read_write> factors: array<f32>;

const PER_GROUP: u32 = EXPERTS / GROUPS;
// The teams' parts are joined four at a time.
const CREWS: u32 = WORKGROUP / TEAM;
const_assert CREWS % 4u == 0u;

// Range of finite logits as far as their maximum goes; what stands for one that is no number is above it.
const LOWEST: f32 = -3.0e38;
const HIGHEST: f32 = 3.0e38;
const NO_NUMBER: f32 = 3.3e38;

// Integer keys of no expert, of one that must not be chosen, and the least of the others.
const NOBODY: u32 = 1u;
const CLOSED: u32 = 2u;
const LEAST: u32 = 3u;

const SETS: u32 = (EXPERTS + 31u) / 32u;
const SET_BEST: u32 = min(TOP_K, 32u);
const FINALISTS: u32 = SETS * SET_BEST;
const FINALIST_SPACE: u32 = (FINALISTS + 15u) / 16u * 16u;
const TOP_SPACE: u32 = (TOP_K + 3u) / 4u * 4u;

var<workgroup> tops: array<f32, CREWS>;
var<workgroup> totals: array<f32, CREWS>;
var<workgroup> gates: array<f32, CREWS>;
var<workgroup> own_logits: array<f32, EXPERTS>;
var<workgroup> scored: array<f32, EXPERTS>;
var<workgroup> ranks: array<f32, GROUPS>;
var<workgroup> sets: array<u32, 32u * SETS>;
var<workgroup> finalist_keys: array<u32, FINALIST_SPACE>;
var<workgroup> finalists: array<u32, FINALIST_SPACE>;
var<workgroup> best_scores: array<f32, TOP_SPACE>;

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 0x7fffffffu) > 0x7f800000u; }

// The score of a logit; `top` and `total` are the largest logit and the sum of the exponentials.
fn score_of(logit: f32, top: f32, total: f32) -> f32 {
    if SIGMOID { return 1.0 / (1.0 + exp(-logit)); }
    return exp(logit - top) / total;
}

// An integer in the order of the floats; both zeros are equal.
fn key_of(value: f32) -> u32 {
    let bits = bitcast<u32>(select(value, 0.0, value == 0.0));
    return max(select(bits | 0x80000000u, ~bits, bits >= 0x80000000u), LEAST);
}

// The two largest of what came before and four more.
fn two_best(two: vec2<f32>, v: vec4<f32>) -> vec2<f32> {
    let low = vec2(min(v.x, v.y), min(v.z, v.w));
    let high = vec2(max(v.x, v.y), max(v.z, v.w));
    let first = max(high.x, high.y);
    let second = max(min(high.x, high.y), max(low.x, low.y));
    return vec2(max(two.x, first), max(min(two.x, first), max(two.y, second)));
}

fn scored_until(e: u32, end: u32) -> f32 { return select(LOWEST, scored[min(e, EXPERTS - 1u)], e < end); }

// Sum of the two best scores of a group of experts.
fn rank_of(group: u32) -> f32 {
    let end = (group + 1u) * PER_GROUP;
    var two = vec2(LOWEST);
    for (var e = group * PER_GROUP; e < end; e += 4u) {
        two = two_best(two, vec4(scored_until(e, end), scored_until(e + 1u, end), scored_until(e + 2u, end),
            scored_until(e + 3u, end)));
    }
    return two.x + two.y;
}

// Whether a group is among the KEPT best ones; of equals the lower index is.
fn is_kept(group: u32) -> bool {
    var better = 0u;
    for (var g = 0u; g < GROUPS; g++) {
        better += u32(ranks[g] > ranks[group] || (ranks[g] == ranks[group] && g < group));
    }
    return better < KEPT;
}

fn finalists_ahead(at: u32, key: u32, place: u32) -> u32 {
    return ahead4(vec4(finalist_keys[at], finalist_keys[at + 1u], finalist_keys[at + 2u], finalist_keys[at + 3u]), at,
        key, place);
}

// How many finalists come before one. Their order is that of the experts wherever keys are equal.
fn place_of(finalist: u32) -> u32 {
    let key = finalist_keys[finalist];
    var before = 0u;
    for (var at = 0u; at < FINALIST_SPACE; at += 16u) {
        before += finalists_ahead(at, key, finalist) + finalists_ahead(at + 4u, key, finalist)
            + finalists_ahead(at + 8u, key, finalist) + finalists_ahead(at + 12u, key, finalist);
    }
    return before;
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let token = ids.group.y;
    let row = token * LOGIT_STRIDE;
    // Mostly all that a thread loads; on its way together.
    let first_logit = logits[row + min(ids.local, EXPERTS - 1u)];
    let first_bias = bias_of_expert(min(ids.local, EXPERTS - 1u));
    let gate_part = shared_part(ids, token);

    var highest = LOWEST;
    for (var e = ids.local; e < 32u * SETS; e += WORKGROUP) {
        var logit = first_logit;
        if e >= WORKGROUP { logit = logits[row + min(e, EXPERTS - 1u)]; }
        if e < EXPERTS {
            own_logits[e] = logit;
            highest = max(highest, select(min(logit, HIGHEST), NO_NUMBER, is_nan(logit)));
        }
        sets[e] = select(NOBODY, key_of(logit), e < EXPERTS);
    }
    for (var c = FINALISTS + ids.local; c < FINALIST_SPACE; c += WORKGROUP) { finalist_keys[c] = 0u; }
    for (var k = TOP_K + ids.local; k < TOP_SPACE; k += WORKGROUP) { best_scores[k] = 0.0; }

    // Every team's own maximum and sums; joined after one barrier.
    let team_top = team_max(ids, highest);
    var part = 0.0;
    if !SIGMOID {
        for (var e = ids.local; e < EXPERTS; e += WORKGROUP) { part += exp(own_logits[e] - team_top); }
        part = team_sum(ids, part);
    }
    var gate = gate_part;
    if GATED { gate = team_sum(ids, gate); }
    if team_lane(ids) == 0u {
        tops[team_index(ids)] = team_top;
        totals[team_index(ids)] = part;
        gates[team_index(ids)] = gate;
    }
    workgroupBarrier();
    var top = LOWEST;
    for (var i = 0u; i < CREWS; i += 4u) {
        top = max(top, max(max(tops[i], tops[i + 1u]), max(tops[i + 2u], tops[i + 3u])));
    }
    var total = 0.0;
    if !SIGMOID {
        for (var i = 0u; i < CREWS; i += 4u) {
            total += dot(vec4(totals[i], totals[i + 1u], totals[i + 2u], totals[i + 3u]),
                exp(vec4(tops[i], tops[i + 1u], tops[i + 2u], tops[i + 3u]) - top));
        }
    }
    if SHARED && ids.local == 0u {
        var sum = 0.0;
        if GATED { for (var i = 0u; i < CREWS; i += 4u) { sum += gates[i] + gates[i + 1u] + gates[i + 2u] + gates[i + 3u]; } }
        chosen[token * JOBS_STRIDE + TOP_K] = EXPERTS;
        factors[token * JOBS_STRIDE + TOP_K] = shared_factor(sum);
    }

    // Without a bias the logits are in the order of the scores, and none of them are equal only by rounding.
    if BIASED || GROUPS > 1u {
        for (var e = ids.local; e < EXPERTS; e += WORKGROUP) {
            var bias = first_bias;
            if e >= WORKGROUP { bias = bias_of_expert(e); }
            scored[e] = score_of(own_logits[e], top, total) + bias;
            if BIASED { sets[e] = key_of(scored[e]); }
        }
        if GROUPS > 1u {
            workgroupBarrier();
            for (var g = ids.local; g < GROUPS; g += WORKGROUP) { ranks[g] = rank_of(g); }
            workgroupBarrier();
            for (var e = ids.local; e < EXPERTS; e += WORKGROUP) {
                if !is_kept(e / PER_GROUP) { sets[e] = CLOSED; }
            }
        }
        workgroupBarrier();
    }

    for (var e = ids.local; e < 32u * SETS; e += WORKGROUP) {
        let place = place_in_set(e);
        if place < SET_BEST {
            let finalist = e / 32u * SET_BEST + place;
            finalist_keys[finalist] = sets[e];
            finalists[finalist] = e;
        }
    }
    workgroupBarrier();
    for (var c = ids.local; c < FINALISTS; c += WORKGROUP) {
        let place = place_of(c);
        if place < TOP_K {
            let e = finalists[c];
            chosen[token * JOBS_STRIDE + place] = e;
            best_scores[place] = score_of(own_logits[e], top, total);
        }
    }
    workgroupBarrier();
    var divisor = 1.0;
    if NORMALISE {
        divisor = EPS;
        for (var k = 0u; k < TOP_SPACE; k += 4u) {
            divisor = divisor + best_scores[k] + best_scores[k + 1u] + best_scores[k + 2u] + best_scores[k + 3u];
        }
    }
    for (var k = ids.local; k < TOP_K; k += WORKGROUP) {
        // A router that gives no number spoils the result; it does not hide.
        let spoilt = bitcast<f32>(0x7fc00000u + u32(top > HIGHEST));
        factors[token * JOBS_STRIDE + k] = select(best_scores[k] / divisor * SCALE, spoilt, top > HIGHEST);
    }
}
