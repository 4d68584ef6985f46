//! What a network *is*, apart from how it is computed.
//!
//! Owns: [`ModelSpec`] (read from a container's header and from which tensors exist), [`Program`] (the spec
//! lowered to a flat list of typed operations), the ragged [`Batch`], the [`SequenceState`] and [`Executor`]
//! contracts, and the [`Weights`] trait behind which the weights are mapped, owned or synthetic.
//!
//! Entry point: [`Program::from_weights`]. Must not know: model families, file import, devices, tokenizers.

mod batch;
mod error;
mod executor;
mod lower;
mod program;
mod rope;
mod shapes;
mod spec;
mod state;
mod weights;

pub use batch::{Batch, Span};
pub use error::ModelError;
pub use executor::Executor;
pub use program::{
    Activation, AttentionOp, GatedFfnOp, HeadOp, LinearPart, MatrixDecl, MatrixId, Op, Program, QkNormRopeStoreOp,
    RopeId, Slot, SlotDecl, StateId, VectorId,
};
pub use rope::RopeTable;
pub use shapes::{NAMED_SHAPES, NamedShape, named_shape, tensors_of};
pub use spec::{AttentionSpec, FfnSpec, LayerSpec, MixerSpec, ModelSpec, NormSpec, RopeSpec};
pub use state::{KvBlock, KvLayer, PagedKv, SequenceId, SequenceState, SnapshotId, StateLimits};
pub use weights::{MappedWeights, OwnedTensor, OwnedWeights, TensorId, Weights};
