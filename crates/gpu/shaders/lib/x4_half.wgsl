// Activations as f16 quads: [rows, X_STRIDE4].
@group(0) @binding(1) var<storage, read> x: array<vec4<f16>>;
