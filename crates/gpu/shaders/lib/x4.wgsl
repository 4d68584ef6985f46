// f32 activations, [tokens, X_STRIDE4].
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
