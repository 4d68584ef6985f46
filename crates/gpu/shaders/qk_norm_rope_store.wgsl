// Norms and rotates a query head in place; norms, rotates and stores a key head; norms and stores a value head.
// One workgroup per head (x: query heads, then key heads, then value heads) and row (y).
@group(0) @binding(1) var<storage, read_write> q: array<f32>;
@group(0) @binding(2) var<storage, read> k: array<f32>;
@group(0) @binding(3) var<storage, read> v: array<f32>;

var<workgroup> head: array<f32, HEAD_DIM>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = ids.group.y;
    let is_query = ids.group.x < HEADS;
    let is_key = !is_query && ids.group.x < HEADS + KV_HEADS;
    let kv_head = (ids.group.x - select(HEADS, 0u, is_query)) % KV_HEADS;
    let q_at = row * Q_STRIDE + ids.group.x * HEAD_DIM;
    let kv_at = row * KV_STRIDE + kv_head * HEAD_DIM;
    var part = 0.0;
    for (var i = ids.local; i < HEAD_DIM; i += WORKGROUP) {
        var x: f32;
        if is_query { x = q[q_at + i]; } else if is_key { x = k[kv_at + i]; } else { x = v[kv_at + i]; }
        head[i] = x;
        part += x * x;
    }
    let mean = group_sum(ids, part) / f32(HEAD_DIM);
    for (var i = ids.local; i < HEAD_DIM; i += WORKGROUP) {
        if is_query {
            if QK_NORM { head[i] *= q_weight(i) / sqrt(mean + EPS); }
        } else if is_key {
            if QK_NORM { head[i] *= k_weight(i) / sqrt(mean + EPS); }
        } else if VALUE_NORM {
            head[i] *= 1.0 / sqrt(mean + VALUE_EPS);
        }
    }
    workgroupBarrier();
    if is_query {
        for (var i = ids.local; i < HEAD_DIM; i += WORKGROUP) { q[q_at + i] = rotated(row, i); }
        return;
    }
    let position = row_position(row);
    let block = cache_block(row_span(row), CACHE_GROUP, position / 32u);
    let at = ((block * KV_HEADS + kv_head) * 32u + position % 32u) * (HEAD_DIM / 4u);
    for (var d = ids.local; d < HEAD_DIM / 4u; d += WORKGROUP) {
        if is_key {
            put_key4(at + d, vec4(rotated(row, 4u * d), rotated(row, 4u * d + 1u), rotated(row, 4u * d + 2u),
                rotated(row, 4u * d + 3u)));
        } else {
            put_value4(at + d, vec4(head[4u * d], head[4u * d + 1u], head[4u * d + 2u], head[4u * d + 3u]));
        }
    }
}
