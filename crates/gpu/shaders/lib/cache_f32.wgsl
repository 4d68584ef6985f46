// Cache of f32 for kernels that write it: keys and values [block, kv_head, 32, dim].
@group(0) @binding(4) var<storage, read_write> keys: array<vec4<f32>>;
@group(0) @binding(5) var<storage, read_write> values: array<vec4<f32>>;
fn key4(at: u32) -> vec4<f32> { return keys[at]; }
fn value4(at: u32) -> vec4<f32> { return values[at]; }
fn put_key4(at: u32, x: vec4<f32>) { keys[at] = x; }
fn put_value4(at: u32, x: vec4<f32>) { values[at] = x; }
