// GELU in its tanh form; the argument is limited because tanh of a large one is not defined everywhere.
fn activate(x: f32) -> f32 {
    let inner = 0.7978845608 * (x + 0.044715 * x * x * x);
    return 0.5 * x * (1.0 + tanh(clamp(inner, -15.0, 15.0)));
}
