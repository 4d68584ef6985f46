// The shared expert's factor: sigmoid(gate · x).
const GATED: bool = true;

// Four quads of columns on their way at a time; beyond the end the last one, which counts nothing.
fn shared_run(token: u32, c4: u32) -> f32 {
    let at = min(vec4(c4, c4 + WORKGROUP, c4 + 2u * WORKGROUP, c4 + 3u * WORKGROUP), vec4(COLS4 - 1u));
    let row = token * X_STRIDE4;
    let products = vec4(dot(weight4(0u, at.x), x[row + at.x]), dot(weight4(0u, at.y), x[row + at.y]),
        dot(weight4(0u, at.z), x[row + at.z]), dot(weight4(0u, at.w), x[row + at.w]));
    let inside = vec4(c4, c4 + WORKGROUP, c4 + 2u * WORKGROUP, c4 + 3u * WORKGROUP) < vec4(COLS4);
    let counted = select(vec4(0.0), products, inside);
    return counted.x + counted.y + counted.z + counted.w;
}

// A thread's share of the product.
fn shared_part(ids: Ids, token: u32) -> f32 {
    var part = shared_run(token, ids.local);
    for (var c4 = ids.local + 4u * WORKGROUP; c4 < COLS4; c4 += 4u * WORKGROUP) { part += shared_run(token, c4); }
    if team_index(ids) == 0u { part += overlay_dot(ids, 0u, token); }
    return part;
}

fn shared_factor(sum: f32) -> f32 { return 1.0 / (1.0 + exp(-sum)); }
