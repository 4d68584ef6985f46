// One token's int8 activations, X_GROUPS groups of 32, brought to workgroup memory for TURNS turns of SPAN groups per
// lane of a team. Groups beyond the end have scale 0. Second codes, where there are any, are X_REST groups after the
// first ones, and X_SPACE groups after them in workgroup memory.
@group(0) @binding(7) var<storage, read> x_codes: array<vec4<u32>>;
@group(0) @binding(8) var<storage, read> x_scales: array<vec2<f32>>;

const X_SPACE: u32 = TURNS * SPAN * TEAM;
const REST: u32 = X_SPACE;
const X_HALVES: u32 = 2u * CODES * X_GROUPS;
const X_PLACES: u32 = CODES * X_SPACE;

// The low halves of all groups, then the high ones, so that neighbouring lanes read neighbouring words.
var<workgroup> copied_halves: array<vec4<u32>, 2u * X_PLACES>;
var<workgroup> copied_scales: array<vec2<f32>, X_PLACES>;

// What a thread loads before anything else: two halves of groups and a scale, mostly its whole share.
struct Raw { a: vec4<u32>, b: vec4<u32>, scale: vec2<f32> }

// Half `i % 2` of group `i / 2` of all groups, those of second codes after the others.
fn raw_half(i: u32) -> vec4<u32> {
    let at = min(i, X_HALVES - 1u);
    if CODES > 1u { return x_codes[select(at, at + 2u * X_REST - 2u * X_GROUPS, at >= 2u * X_GROUPS)]; }
    return x_codes[at];
}

fn put_half(i: u32, half: vec4<u32>) {
    var place = i / 2u;
    if CODES > 1u && place >= X_GROUPS { place += X_SPACE - X_GROUPS; }
    copied_halves[(i % 2u) * X_PLACES + place] = half;
}

fn raw_scale(place: u32) -> vec2<f32> {
    let group = min(place % X_SPACE, X_GROUPS - 1u);
    if CODES > 1u { return x_scales[group + select(0u, X_REST, place >= X_SPACE)]; }
    return x_scales[group];
}

fn put_scale(place: u32, scale: vec2<f32>) {
    copied_scales[place] = select(vec2(0.0), scale, place % X_SPACE < X_GROUPS);
}

fn load_x(ids: Ids) -> Raw {
    return Raw(raw_half(ids.local), raw_half(ids.local + WORKGROUP), raw_scale(min(ids.local, X_PLACES - 1u)));
}

// Fills the copy; the whole workgroup calls it together.
fn prepare_x(ids: Ids, raw: Raw) {
    if ids.local < X_HALVES { put_half(ids.local, raw.a); }
    if ids.local + WORKGROUP < X_HALVES { put_half(ids.local + WORKGROUP, raw.b); }
    for (var i = ids.local + 2u * WORKGROUP; i < X_HALVES; i += WORKGROUP) { put_half(i, raw_half(i)); }
    if ids.local < X_PLACES { put_scale(ids.local, raw.scale); }
    for (var place = ids.local + WORKGROUP; place < X_PLACES; place += WORKGROUP) { put_scale(place, raw_scale(place)); }
    workgroupBarrier();
}

fn x_low(group: u32) -> vec4<u32> { return copied_halves[group]; }
fn x_high(group: u32) -> vec4<u32> { return copied_halves[X_PLACES + group]; }
fn x_scale(group: u32) -> vec2<f32> { return copied_scales[group]; }
