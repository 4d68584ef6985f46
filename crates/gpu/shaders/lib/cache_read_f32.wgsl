// Cache of f32: keys and values [block, kv_head, 32, dim].
@group(0) @binding(4) var<storage, read> keys: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read> values: array<vec4<f32>>;
fn key4(at: u32) -> vec4<f32> { return keys[at]; }
fn value4(at: u32) -> vec4<f32> { return values[at]; }
