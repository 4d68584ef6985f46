//! The error of this crate.

use thiserror::Error;

/// Why a model cannot be described, or why a batch cannot be run.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The container refused an access.
    #[error(transparent)]
    Container(#[from] cortiq_cmf::CmfError),
    /// A tensor that the network needs is not in the file.
    #[error("tensor `{0}` is missing")]
    MissingTensor(String),
    /// A tensor has another shape than the header implies.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}")]
    Shape {
        /// Tensor name.
        name: String,
        /// Shape in the file.
        found: Vec<u32>,
        /// Shape that the architecture implies.
        expected: Vec<usize>,
    },
    /// A vector (norm weight, bias) is stored in a dtype that only matrices may have.
    #[error("tensor `{name}` is stored as {dtype}, but vectors must be f32, f16 or bf16")]
    VectorDtype {
        /// Tensor name.
        name: String,
        /// Name of the dtype found.
        dtype: &'static str,
    },
    /// The model uses something that this engine cannot run.
    #[error("this model cannot be run: {0}")]
    Unsupported(String),
    /// A task mask was made for another model, or switches off what cannot be switched off.
    #[error("the task mask `{task}` does not fit this model: {reason}")]
    Mask {
        /// Name of the mask.
        task: String,
        /// Layer and sizes that do not fit.
        reason: String,
    },
    /// A header value makes no sense.
    #[error("header value `{field}` is invalid: {reason}")]
    Header {
        /// Key in the header.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A payload does not fit its dtype, or its dtype cannot be used here.
    #[error("tensor `{name}`: {reason}")]
    Payload {
        /// Tensor name.
        name: String,
        /// What the codec said.
        reason: String,
    },
    /// A token id is not in the model's vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab_size}")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Rows of the embedding.
        vocab_size: usize,
    },
    /// A batch contradicts itself or the state of its sequences.
    #[error("invalid batch: {0}")]
    Batch(String),
    /// A sequence would grow beyond what the model or the caller allows.
    #[error("sequence of {wanted} positions exceeds the limit of {limit}")]
    ContextFull {
        /// Positions wanted.
        wanted: usize,
        /// Positions allowed.
        limit: usize,
    },
    /// A device is gone, and with it the state of its sequences; the next step may find another.
    #[error("{0}")]
    DeviceLost(String),
    /// The memory set aside for sequence state is used up.
    #[error("no room for {wanted} more bytes of sequence state: {used} of {limit} are in use")]
    StateFull {
        /// Bytes wanted.
        wanted: usize,
        /// Bytes in use.
        used: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// The system has no memory for the state.
    #[error("no memory for {bytes} bytes of sequence state")]
    OutOfMemory {
        /// Bytes wanted.
        bytes: usize,
    },
    /// A sequence cannot go back: a recurrent layer has moved on, or a window has passed.
    #[error("a sequence of {from} positions cannot go back to {to}")]
    CannotRewind {
        /// Present length.
        from: usize,
        /// Length asked for.
        to: usize,
    },
    /// A draft was asked of a model without a prediction head.
    #[error("this model has no prediction head")]
    NoPredictionHead,
    /// A sequence or snapshot handle is not alive.
    #[error("unknown {kind} handle {id}")]
    UnknownHandle {
        /// `sequence` or `snapshot`.
        kind: &'static str,
        /// The handle's number.
        id: usize,
    },
    /// The executor itself failed (a worker died, a device was lost).
    #[error("executor failed: {0}")]
    Executor(String),
}
