// Latent attention before its scores, for one row (y): rotates the rope part of a query head in place (x < HEADS), or
// norms the compressed row, rotates the shared part of the key and stores both as one key (x = HEADS).
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read> latent: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;

const KEY_DIM: u32 = KV_RANK + ROPE_DIM;
const STORE_TEAMS: u32 = WORKGROUP / TEAM;

var<workgroup> head: array<f32, ROPE_DIM>;
var<workgroup> squares: array<f32, STORE_TEAMS>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = ids.group.y;
    let is_query = ids.group.x < HEADS;
    let rope_at = select(row * KV_STRIDE + KV_RANK, row * Q_STRIDE + ids.group.x * Q_HEAD + NOPE_DIM, is_query);
    for (var i = ids.local; i < ROPE_DIM; i += WORKGROUP) {
        if is_query { head[i] = q[rope_at + i]; } else { head[i] = latent[rope_at + i]; }
    }
    workgroupBarrier();
    if is_query {
        for (var i = ids.local; i < ROPE_DIM; i += WORKGROUP) { q[rope_at + i] = rotated(row, i); }
        return;
    }
    var part = 0.0;
    for (var i = ids.local; i < KV_RANK; i += WORKGROUP) {
        let x = latent[row * KV_STRIDE + i];
        part += x * x;
    }
    let square = team_sum(ids, part);
    if team_lane(ids) == 0u { squares[team_index(ids)] = square; }
    workgroupBarrier();
    var sum = 0.0;
    for (var i = 0u; i < STORE_TEAMS; i++) { sum += squares[i]; }
    let factor = 1.0 / sqrt(sum / f32(KV_RANK) + EPS);
    let position = row_position(row);
    let block = cache_block(row_span(row), CACHE_GROUP, position / 32u);
    let at = (block * 32u + position % 32u) * (KEY_DIM / 4u);
    for (var d = ids.local; d < KEY_DIM / 4u; d += WORKGROUP) {
        var x: vec4<f32>;
        for (var k = 0u; k < 4u; k++) {
            let i = 4u * d + k;
            if i < KV_RANK {
                x[k] = latent[row * KV_STRIDE + i] * factor * norm[i];
            } else {
                x[k] = rotated(row, i - KV_RANK);
            }
        }
        put_key4(at + d, x);
    }
}
