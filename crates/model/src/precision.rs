//! How exact an executor's arithmetic is.

/// How exact the arithmetic is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precision {
    /// f32 activations.
    Exact,
    /// int8 activations for quantised weights; on a GPU also f16 inputs of matrix units.
    #[default]
    Fast,
}
