// The output is multiplied by the sigmoid of a gate.
@group(0) @binding(6) var<storage, read> gates: array<vec4<f32>>;
fn gate4(at: u32) -> vec4<f32> { return 1.0 / (1.0 + exp(-gates[at])); }
