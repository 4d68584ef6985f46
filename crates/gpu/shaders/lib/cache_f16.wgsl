// Cache of f16 pairs for kernels that write it: keys and values [block, kv_head, 32, dim].
@group(0) @binding(4) var<storage, read_write> keys: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read_write> values: array<vec2<u32>>;
fn key4(at: u32) -> vec4<f32> { let w = keys[at]; return vec4(unpack2x16float(w.x), unpack2x16float(w.y)); }
fn value4(at: u32) -> vec4<f32> { let w = values[at]; return vec4(unpack2x16float(w.x), unpack2x16float(w.y)); }
fn put_key4(at: u32, x: vec4<f32>) { keys[at] = vec2(pack2x16float(x.xy), pack2x16float(x.zw)); }
fn put_value4(at: u32, x: vec4<f32>) { values[at] = vec2(pack2x16float(x.xy), pack2x16float(x.zw)); }
