//! The crate's error type.

/// Why a matrix could not be encoded, decoded or viewed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantError {
    /// A matrix without elements was given.
    #[error("matrix {rows}x{cols} has no elements")]
    Empty {
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// A size overflows the address space or a 32-bit field of the format.
    #[error("{dtype}: matrix {rows}x{cols} is too large ({what})")]
    TooLarge {
        /// Dtype name.
        dtype: &'static str,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
        /// The size that does not fit.
        what: &'static str,
    },
    /// The dtype cannot hold a matrix of this shape.
    #[error("{dtype} cannot hold a {rows}x{cols} matrix: {needs}")]
    Shape {
        /// Dtype name.
        dtype: &'static str,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
        /// The rule that is broken.
        needs: &'static str,
    },
    /// The number of values is not `rows * cols`.
    #[error("{got} values given for a {rows}x{cols} matrix")]
    InputLength {
        /// Values given.
        got: usize,
        /// Rows asked for.
        rows: usize,
        /// Columns asked for.
        cols: usize,
    },
    /// The payload has the wrong number of bytes for its dtype and shape.
    #[error("{dtype} payload has {got} bytes, a {rows}x{cols} matrix needs {expected}")]
    PayloadLength {
        /// Dtype name.
        dtype: &'static str,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Bytes needed (the least number where the shape alone does not fix it).
        expected: u64,
        /// Bytes given.
        got: u64,
    },
    /// The payload has a possible length but its contents break the format.
    #[error("{dtype} payload is corrupt: {what}")]
    Corrupt {
        /// Dtype name.
        dtype: &'static str,
        /// What is wrong, with the row or entry.
        what: String,
    },
    /// An input value of a quantising encoder is NaN or infinite.
    #[error("value {index} is not finite")]
    NotFinite {
        /// Flat index of the first such value.
        index: usize,
    },
    /// An input value is so large that a scale or an outlier would overflow f16.
    #[error("{dtype}: value {index} exceeds {limit}, the largest magnitude this dtype can scale")]
    OutOfRange {
        /// Dtype name.
        dtype: &'static str,
        /// Flat index of the first such value.
        index: usize,
        /// Largest magnitude accepted.
        limit: f32,
    },
    /// An encoder option is unusable.
    #[error("{dtype} option {option}: {what}")]
    Option {
        /// Dtype name.
        dtype: &'static str,
        /// Option name.
        option: &'static str,
        /// What is wrong with it.
        what: String,
    },
}
