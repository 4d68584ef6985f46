// The shared expert's factor: sigmoid(gate · x).
fn shared_factor(ids: Ids, token: u32) -> f32 {
    var part = 0.0;
    for (var c4 = ids.local; c4 < COLS4; c4 += WORKGROUP) { part += dot(weight4(0u, c4), x[token * X_STRIDE4 + c4]); }
    if team_index(ids) == 0u { part += overlay_dot(ids, 0u, token); }
    return 1.0 / (1.0 + exp(-group_sum(ids, part)));
}
