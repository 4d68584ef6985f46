// Ranges of keys put together, divided, and brought from the compressed space to the value heads: out[i] = Σ_r W[i, r]
// mixed[r] with the last VALUE_DIM rows W of a head of kv_b. y is head * TILES + tile of TILE rows of W, x a run of
// TOKENS tokens. Reads the head's rows of W once per TOKENS tokens, and the mixed rows once per tile.
@group(0) @binding(1) var<storage, read> mixed: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read> stats: array<vec2<f32>>;
@group(0) @binding(4) var<storage, read_write> out: array<f32>;

const RANK_QUADS: u32 = KV_RANK / 4u;
const TILES: u32 = (VALUE_DIM + TILE - 1u) / TILE;

var<workgroup> whole: array<vec4<f32>, TOKENS * RANK_QUADS>;

// A quad of the average of compressed rows that the softmax of a head makes.
fn average(row: u32, head: u32, quad: u32) -> vec4<f32> {
    let at = (row * HEADS + head) * SPLITS;
    var top = stats[at].x;
    for (var s = 1u; s < SPLITS; s++) { top = max(top, stats[at + s].x); }
    var total = 0.0;
    var sum = vec4(0.0);
    for (var s = 0u; s < SPLITS; s++) {
        let range = stats[at + s];
        // A short context leaves ranges empty.
        if range.y > 0.0 {
            let weight = exp(range.x - top);
            total += weight * range.y;
            sum += weight * mixed[(at + s) * RANK_QUADS + quad];
        }
    }
    return sum / total;
}

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let index = group_index(ids.group, ids.groups);
    let head = min(index / TILES, HEADS - 1u);
    let first = ids.group.x * TOKENS;
    for (var i = ids.local; i < TOKENS * RANK_QUADS; i += WORKGROUP) {
        whole[i] = average(min(first + i / RANK_QUADS, step_rows() - 1u), head, i % RANK_QUADS);
    }
    workgroupBarrier();
    let tile = (index % TILES) * TILE;
    for (var r = 0u; r < TILE; r += WORKGROUP / TEAM) {
        let i = tile + r + team_index(ids);
        let row = head * KV_HEAD + NOPE_DIM + min(i, VALUE_DIM - 1u);
        var sums: array<f32, TOKENS>;
        for (var c4 = team_lane(ids); c4 < RANK_QUADS; c4 += TEAM) {
            let w = weight4(row, c4) + overlay4(row, c4);
            for (var t = 0u; t < TOKENS; t++) { sums[t] += dot(w, whole[t * RANK_QUADS + c4]); }
        }
        for (var t = 0u; t < TOKENS; t++) {
            let sum = team_sum(ids, sums[t]);
            let live = i < VALUE_DIM && index < HEADS * TILES && first + t < step_rows();
            if live && team_lane(ids) == 0u {
                out[(first + t) * OUT_STRIDE + head * VALUE_DIM + i] = sum * mask_of(head);
            }
        }
    }
}
