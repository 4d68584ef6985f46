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
mod part;
mod precision;
mod program;
mod rope;
mod shapes;
mod spec;
mod state;
mod top;
mod weights;

pub use batch::{Batch, Row, Span};
pub use error::ModelError;
pub use executor::{DraftInput, DraftSource, Executor, KernelTime};
pub use part::{Part, PartExecutor};
pub use precision::Precision;
pub use program::{
    Activation, AttentionOp, Draft, Expert, GatedDeltaOp, GatedFfnOp, HeadOp, LinearPart, MatrixDecl, MatrixId,
    MlaAttentionOp, MlaStoreOp, MoeOp, Op, Program, QkNorm, QkNormRopeStoreOp, RopeId, SharedExpert, ShortConvOp, Slot,
    SlotDecl, StateId, VectorId, is_read,
};
pub use rope::{LongTable, Pairing, RopeTable};
pub use shapes::{DeltaShape, ExpertsShape, NAMED_SHAPES, NamedShape, named_shape, tensors_of};
pub use spec::{
    AttentionSpec, ExpertGroups, FfnSpec, GatedDeltaSpec, LayerSpec, MixerSpec, MlaSpec, ModelSpec, MoeSpec, MtpSpec,
    NormSpan, NormSpec, QkNormSpec, RopeSpec, RouterScoring, SharedExpertSpec, ShortConvSpec,
};
pub use state::{
    HostState, KvBlock, KvDtype, KvLayer, KvRows, KvValues, SequenceId, SequenceState, SnapshotId, StateDecl,
    StateLimits,
};
pub use top::{TopLogit, TopRows, Wanted};
pub use weights::{MappedWeights, OwnedTensor, OwnedWeights, TensorId, Weights};
