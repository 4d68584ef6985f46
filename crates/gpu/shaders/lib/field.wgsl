// Factors of the columns, per copy.
@group(0) @binding(4) var<storage, read> fields: array<vec4<f32>>;
fn field4(copy: u32, c4: u32) -> vec4<f32> { return fields[copy * GROUPS * 8u + c4]; }
