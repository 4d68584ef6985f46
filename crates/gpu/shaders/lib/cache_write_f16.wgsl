// Cache of f16 pairs: keys and values [block, kv_head, 32, dim].
@group(0) @binding(4) var<storage, read_write> keys: array<vec2<u32>>;
@group(0) @binding(5) var<storage, read_write> values: array<vec2<u32>>;
fn put_key4(at: u32, x: vec4<f32>) { keys[at] = vec2(pack2x16float(x.xy), pack2x16float(x.zw)); }
fn put_value4(at: u32, x: vec4<f32>) { values[at] = vec2(pack2x16float(x.xy), pack2x16float(x.zw)); }
