// One token's int8 activations, X_GROUPS groups of 32, brought to workgroup memory for TURNS turns of SPAN groups per
// lane of a team. Groups beyond the end have scale 0.
@group(0) @binding(7) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> x_scales: array<vec2<f32>>;

const X_SPACE: u32 = TURNS * SPAN * TEAM;
const X_HALVES: u32 = 2u * X_GROUPS;

// The low halves of all groups, then the high ones, so that neighbouring lanes read neighbouring words.
var<workgroup> copied_halves: array<vec4<u32>, 2u * X_SPACE>;
var<workgroup> copied_scales: array<vec2<f32>, X_SPACE>;

// What a thread loads before anything else: two halves of groups and a scale, mostly its whole share.
struct Raw { a: vec4<u32>, b: vec4<u32>, scale: vec2<f32> }

fn load_x(ids: Ids) -> Raw {
    let last = X_HALVES - 1u;
    return Raw(x_codes[min(ids.local, last)], x_codes[min(ids.local + WORKGROUP, last)],
        x_scales[min(ids.local, X_GROUPS - 1u)]);
}

fn put_half(i: u32, half: vec4<u32>) { copied_halves[(i % 2u) * X_SPACE + i / 2u] = half; }

// Fills the copy; the whole workgroup calls it together.
fn prepare_x(ids: Ids, raw: Raw) {
    if ids.local < X_HALVES { put_half(ids.local, raw.a); }
    if ids.local + WORKGROUP < X_HALVES { put_half(ids.local + WORKGROUP, raw.b); }
    for (var i = ids.local + 2u * WORKGROUP; i < X_HALVES; i += WORKGROUP) { put_half(i, x_codes[i]); }
    if ids.local < X_SPACE { copied_scales[ids.local] = select(vec2(0.0), raw.scale, ids.local < X_GROUPS); }
    for (var g = ids.local + WORKGROUP; g < X_SPACE; g += WORKGROUP) {
        copied_scales[g] = select(vec2(0.0), x_scales[min(g, X_GROUPS - 1u)], g < X_GROUPS);
    }
    workgroupBarrier();
}

fn x_low(group: u32) -> vec4<u32> { return copied_halves[group]; }
fn x_high(group: u32) -> vec4<u32> { return copied_halves[X_SPACE + group]; }
fn x_scale(group: u32) -> vec2<f32> { return copied_scales[group]; }
