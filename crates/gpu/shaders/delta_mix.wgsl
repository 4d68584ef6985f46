// What comes before the delta rule, for one row (y) and one key head or one value head (x: key heads, then value heads):
// convolution and SiLU -> mixed; queries and keys scaled to unit length, queries also by 1 / sqrt(KEY_DIM); decay, beta
// and k·q of each value head -> scalars. Reads 4 KERNEL bytes of raw rows per channel, from cache but for the first.
@group(0) @binding(1) var<storage, read> state: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> mixed: array<vec4<f32>>;
@group(0) @binding(9) var<storage, read_write> scalars: array<vec4<f32>>;

const SHARED: u32 = VALUE_HEADS / KEY_HEADS;
const VALUE_QUADS: u32 = VALUE_DIM / 4u;
const MIX_TEAMS: u32 = WORKGROUP / TEAM;

var<workgroup> products: array<vec4<f32>, MIX_TEAMS>;

@compute @workgroup_size(WORKGROUP)
fn main(ids: Ids) {
    let row = ids.group.y;
    let span = row_span(row);
    let base = span_slot(span) * (SLOT_FLOATS / 4u);
    let first_row = span_first_row(span);
    let t = row - first_row;
    let at = row * (CHANNELS / 4u);
    if ids.group.x >= KEY_HEADS {
        if ids.local < VALUE_QUADS {
            let quad = 2u * KEY_HEADS * QUADS + (ids.group.x - KEY_HEADS) * VALUE_QUADS + ids.local;
            mixed[at + quad] = convolved(base, first_row, t, quad);
        }
        return;
    }
    let quad = ids.group.x * QUADS + ids.local;
    var query = vec4(0.0);
    var key = vec4(0.0);
    if ids.local < QUADS {
        query = convolved(base, first_row, t, quad);
        key = convolved(base, first_row, t, quad + KEY_HEADS * QUADS);
    }
    let q = team_sum(ids, dot(query, query));
    let k = team_sum(ids, dot(key, key));
    let qk = team_sum(ids, dot(query, key));
    if team_lane(ids) == 0u { products[team_index(ids)] = vec4(q, k, qk, 0.0); }
    workgroupBarrier();
    var sums = vec4(0.0);
    for (var i = 0u; i < MIX_TEAMS; i++) { sums += products[i]; }
    let by_key = 1.0 / sqrt(sums.y + 1e-6);
    let by_query = 1.0 / (sqrt(sums.x + 1e-6) * sqrt(f32(KEY_DIM)));
    if ids.local < QUADS {
        mixed[at + quad] = query * by_query;
        mixed[at + quad + KEY_HEADS * QUADS] = key * by_key;
    }
    for (var i = ids.local; i < SHARED; i += WORKGROUP) {
        let head = ids.group.x * SHARED + i;
        scalars[row * VALUE_HEADS + head] = vec4(delta_gates(gate_inputs(row, head)), sums.z * by_key * by_query, 0.0);
    }
}
