// Queries in the space of the compressed rows: latent[r] = Σ_d q[d] W[d, r] with the first NOPE_DIM rows W of a head of
// kv_b. y is head * TILES + tile of 4 LANES columns, x a run of TOKENS tokens. WORKGROUP / LANES threads share a quad of
// columns and split d. Reads the head's rows of W once per TOKENS tokens.
@group(0) @binding(1) var<storage, read> q: array<f32>;
@group(0) @binding(2) var<storage, read_write> latent: array<vec4<f32>>;

const SHARES: u32 = WORKGROUP / LANES;
const RANK_QUADS: u32 = KV_RANK / 4u;
const TILES: u32 = (RANK_QUADS + LANES - 1u) / LANES;

var<workgroup> query: array<f32, TOKENS * NOPE_DIM>;
var<workgroup> shares: array<vec4<f32>, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let index = group_index(ids.group, ids.groups);
    let head = min(index / TILES, HEADS - 1u);
    let first = ids.group.x * TOKENS;
    for (var i = ids.local; i < TOKENS * NOPE_DIM; i += WORKGROUP) {
        let row = min(first + i / NOPE_DIM, step_rows() - 1u);
        query[i] = q[row * Q_STRIDE + head * Q_HEAD + i % NOPE_DIM];
    }
    workgroupBarrier();
    let c4 = (index % TILES) * LANES + ids.local % LANES;
    let column = min(c4, RANK_QUADS - 1u);
    var sums: array<vec4<f32>, TOKENS>;
    for (var d = ids.local / LANES; d < NOPE_DIM; d += SHARES) {
        let row = head * KV_HEAD + d;
        let w = weight4(row, column) + overlay4(row, column);
        for (var t = 0u; t < TOKENS; t++) { sums[t] += w * query[t * NOPE_DIM + d]; }
    }
    for (var t = 0u; t < TOKENS; t++) {
        shares[ids.local] = sums[t];
        workgroupBarrier();
        if ids.local < LANES && c4 < RANK_QUADS && index < HEADS * TILES && first + t < step_rows() {
            var whole = vec4(0.0);
            for (var s = 0u; s < SHARES; s++) { whole += shares[s * LANES + ids.local]; }
            latent[((first + t) * HEADS + head) * RANK_QUADS + c4] = whole;
        }
        workgroupBarrier();
    }
}
