//! Operands of the operations. Slots are `[tokens, width]` f32.

use super::{Activation, MatrixId, RopeId, Slot, StateId, VectorId};
use crate::{ExpertGroups, NormSpan, RouterScoring};

/// One weight of a linear map: `out = input · weightᵀ + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearPart {
    /// `[out.width, input.width]`.
    pub weight: MatrixId,
    /// `[out.width]`.
    pub bias: Option<VectorId>,
    /// Destination.
    pub out: Slot,
}

/// Norms of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNorm {
    /// Weight of the queries' norm (any offset is already in it).
    pub q: VectorId,
    /// Weight of the keys' norm.
    pub k: VectorId,
    /// Added to the mean square.
    pub eps: f64,
    /// What is normed together: `[head_dim]` weights, or `[heads * head_dim]` ones.
    pub span: NormSpan,
}

/// Norms and rotates queries in place; norms, rotates and stores keys; norms and stores values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRopeStoreOp {
    /// `[heads * head_dim]`, changed in place.
    pub q: Slot,
    /// `[kv_heads * head_dim]`, changed in place.
    pub k: Slot,
    /// `[kv_heads * head_dim]`, changed in place.
    pub v: Slot,
    /// Cache that receives keys and values.
    pub state: StateId,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Norms before the rotation.
    pub qk_norm: Option<QkNorm>,
    /// Epsilon of an RMS norm without weight on each value head.
    pub value_norm: Option<f64>,
    /// Frequencies; none in a layer without positions.
    pub rope: Option<RopeId>,
}

/// Softmax attention of the batch's queries over everything their sequences have stored, causal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOp {
    /// `[heads * head_dim]`, from [`super::Op::QkNormRopeStore`].
    pub q: Slot,
    /// `[heads * head_dim]`: the output is multiplied by its sigmoid.
    pub gate: Option<Slot>,
    /// `[heads * head_dim]`.
    pub out: Slot,
    /// Cache to read.
    pub state: StateId,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; query head `h` reads `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// A query at `i` sees keys `j` with `i - window < j <= i`.
    pub window: Option<usize>,
    /// Factor on the scores.
    pub scale: f32,
    /// Scaled scores become `c * tanh(score / c)`.
    pub softcap: Option<f32>,
    /// `[heads]` of 1 and 0: the output of a head with 0 is 0.
    pub head_mask: Option<VectorId>,
}

/// Latent attention: norms and stores the compressed row, rotates the shared key part and the queries' parts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaStoreOp {
    /// `[heads * (nope_dim + rope_dim)]`, per head `[nope | rope]`; the rope part is rotated in place.
    pub q: Slot,
    /// `[kv_rank + rope_dim]`, changed in place: the first part is normed, the rest rotated.
    pub kv: Slot,
    /// Norm weight `[kv_rank]`.
    pub kv_norm: VectorId,
    /// Its epsilon.
    pub eps: f64,
    /// Frequencies of the rope part.
    pub rope: RopeId,
    /// Cache with one head, keys of `kv_rank + rope_dim` and no values.
    pub state: StateId,
    /// Query heads.
    pub heads: usize,
    /// Unrotated part of a query.
    pub nope_dim: usize,
    /// Rotated part.
    pub rope_dim: usize,
    /// Width of the compressed row.
    pub kv_rank: usize,
}

/// Latent attention on the compressed rows. With `W = kv_b` as `[heads, nope_dim + value_dim, kv_rank]`:
/// `score_j = scale * ((q_nope W_k) · c_j + q_rope · k_rope_j)`, `out = W_v Σ softmax(score)_j c_j`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MlaAttentionOp {
    /// As left by [`MlaStoreOp`].
    pub q: Slot,
    /// `[heads * (nope_dim + value_dim), kv_rank]`.
    pub kv_b: MatrixId,
    /// `[heads * value_dim]`.
    pub out: Slot,
    /// Cache to read.
    pub state: StateId,
    /// Query heads.
    pub heads: usize,
    /// Unrotated part of a query.
    pub nope_dim: usize,
    /// Rotated part.
    pub rope_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Width of the compressed row.
    pub kv_rank: usize,
    /// Factor on the scores.
    pub scale: f32,
    /// `[heads]` of 1 and 0: the output of a head with 0 is 0.
    pub head_mask: Option<VectorId>,
}

/// Gated delta net between its projections (docs/behaviour.md §2).
///
/// State of a sequence: `(conv_kernel - 1)` rows of raw `qkv`, oldest first, then `[value_heads, key_dim, value_dim]`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedDeltaOp {
    /// `[2 * key_heads * key_dim + value_heads * value_dim]`: all queries, all keys, all values.
    pub qkv: Slot,
    /// Gate of the output, `[value_heads * value_dim]`.
    pub z: Slot,
    /// `[value_heads]`, for the decay.
    pub a: Slot,
    /// `[value_heads]`, for beta.
    pub b: Slot,
    /// Taps `[qkv.width, conv_kernel]`, oldest first.
    pub conv: VectorId,
    /// `[value_heads]`.
    pub a_log: VectorId,
    /// `[value_heads]`.
    pub dt_bias: VectorId,
    /// Norm weight `[value_dim]`.
    pub norm: VectorId,
    /// Its epsilon.
    pub eps: f64,
    /// The recurrent slot.
    pub state: StateId,
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads; head `h` uses key head `h / (value_heads / key_heads)`.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel: usize,
    /// `[value_heads * value_dim]`.
    pub out: Slot,
}

impl GatedDeltaOp {
    /// Channels of the convolution.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Floats of the state's ring; the matrix follows.
    pub fn ring_floats(&self) -> usize {
        (self.conv_kernel - 1) * self.channels()
    }
}

/// Short gated convolution between its projections: `out = C * conv(B * x)`, per channel.
///
/// State of a sequence: `(kernel - 1)` rows of `B * x`, oldest first.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ShortConvOp {
    /// `[3 * width]`: `B | C | x`.
    pub input: Slot,
    /// Taps `[width, kernel]`, oldest first.
    pub taps: VectorId,
    /// Taps.
    pub kernel: usize,
    /// The recurrent slot.
    pub state: StateId,
    /// `[width]`.
    pub out: Slot,
}

/// `out = down(act(gate x) * up x)`, every part with an optional bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatedFfnOp {
    /// `[hidden_size]`.
    pub input: Slot,
    /// Its `out` is scratch that holds the product afterwards.
    pub gate: LinearPart,
    /// Its `out` is scratch.
    pub up: LinearPart,
    /// Reads the product; its `out` is the result.
    pub down: LinearPart,
    /// Activation of the gate.
    pub activation: Activation,
    /// `[gate.out.width]` of 1 and 0: the product of a neuron with 0 is 0.
    pub neuron_mask: Option<VectorId>,
}

/// The matrices of one expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expert {
    /// `[intermediate_size, hidden_size]`.
    pub gate: MatrixId,
    /// `[intermediate_size, hidden_size]`.
    pub up: MatrixId,
    /// `[hidden_size, intermediate_size]`.
    pub down: MatrixId,
}

/// An FFN beside the experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpert {
    /// Its matrices.
    pub expert: Expert,
    /// Its width.
    pub intermediate_size: usize,
    /// `[1, hidden_size]`: the output is multiplied by the sigmoid of its product with the input.
    pub gate: Option<MatrixId>,
}

/// Mixture of experts. Per position: scores, choice of `top_k` (ties go to the lower index), weights, sum.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeOp {
    /// `[hidden_size]`.
    pub input: Slot,
    /// `[hidden_size]`.
    pub out: Slot,
    /// `[experts, hidden_size]`.
    pub router: MatrixId,
    /// Router logits to scores.
    pub scoring: RouterScoring,
    /// `[experts]`, added to the scores for the choice only.
    pub selection_bias: Option<VectorId>,
    /// Groups.
    pub groups: Option<ExpertGroups>,
    /// Experts chosen per position.
    pub top_k: usize,
    /// The chosen weights are divided by their sum plus this.
    pub normalise: Option<f64>,
    /// Factor on the weights.
    pub scale: f32,
    /// The experts.
    pub experts: Vec<Expert>,
    /// Width of an expert.
    pub intermediate_size: usize,
    /// The shared expert.
    pub shared: Option<SharedExpert>,
    /// Activation of the gates.
    pub activation: Activation,
}

/// Logits of chosen rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HeadOp {
    /// `[hidden_size]`, already normed.
    pub input: Slot,
    /// `[vocab_size, hidden_size]`.
    pub weight: MatrixId,
    /// Logits become `c * tanh(logits / c)`.
    pub softcap: Option<f32>,
}
