// y = y / sqrt(mean(y²) + EPS) * norm * SiLU(z) of each value head where it stands. A team per head; heads along x, rows
// along y. Reads 8 bytes per element.
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<storage, read> z: array<f32>;
@group(0) @binding(3) var<storage, read> norm: array<f32>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let head = ids.group.x * (WORKGROUP / TEAM) + team_index(ids);
    let at = ids.group.y * OUT_STRIDE + min(head, VALUE_HEADS - 1u) * VALUE_DIM;
    var part = 0.0;
    for (var i = team_lane(ids); i < VALUE_DIM; i += TEAM) { part += y[at + i] * y[at + i]; }
    let factor = 1.0 / sqrt(team_sum(ids, part) / f32(VALUE_DIM) + EPS);
    if head < VALUE_HEADS {
        for (var i = team_lane(ids); i < VALUE_DIM; i += TEAM) {
            let gate = z[at + i];
            y[at + i] = y[at + i] * factor * norm[i] * gate / (1.0 + exp(-gate));
        }
    }
}
