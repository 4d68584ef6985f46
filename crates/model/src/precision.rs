//! How exact an executor's arithmetic is.

/// How exact the arithmetic is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32 activations.
    Exact,
    /// Activations quantised for quantised weights: to 16 bits on the CPU, to 8 bits on a GPU, whose matrix units also take
    /// f16 inputs.
    #[default]
    Fast,
}
