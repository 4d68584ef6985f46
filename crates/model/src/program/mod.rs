//! The Program: a model as a flat list of typed operations over named activation slots.

mod ops;
mod usage;

pub use ops::{
    AttentionOp, Expert, GatedDeltaOp, GatedFfnOp, HeadOp, LinearPart, MlaAttentionOp, MlaStoreOp, MoeOp, QkNorm,
    QkNormRopeStoreOp, SharedExpert, ShortConvOp,
};

pub use usage::is_read;

use std::collections::HashSet;
use std::ops::Range;

use cortiq_cmf::{Dtype, Header, Mask};

use crate::{ModelError, ModelSpec, RopeTable, StateDecl, TensorId, Weights, lower};

/// Index of an activation slot, a `[tokens, width]` f32 buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub usize);

/// Index into [`Program::matrices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MatrixId(pub usize);

/// Index into [`Program::vectors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VectorId(pub usize);

/// Index into [`Program::ropes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RopeId(pub usize);

/// Index into [`Program::states`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateId(pub usize);

/// Name and width of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotDecl {
    /// For messages and traces.
    pub name: &'static str,
    /// Floats per token.
    pub width: usize,
}

/// A weight matrix that operations refer to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MatrixDecl {
    /// Where its bytes are.
    pub tensor: TensorId,
    /// Name in the container.
    pub name: String,
    /// Storage type.
    pub dtype: Dtype,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
}

/// Elementwise function of a gated FFN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU in its tanh form.
    GeluTanh,
}

impl Activation {
    /// Its value at `x`.
    pub fn apply(self, x: f32) -> f32 {
        match self {
            Self::Silu => x / (1.0 + (-x).exp()),
            Self::GeluTanh => {
                let inner = (2.0 / std::f32::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
        }
    }
}

/// An operation on all rows of a batch.
#[derive(Clone, Debug, PartialEq)]
pub enum Op {
    /// `out = table[token] * scale`.
    Embed {
        /// `[vocab_size, hidden_size]`.
        table: MatrixId,
        /// Factor on the row.
        scale: f32,
        /// Destination.
        out: Slot,
    },
    /// RMS norm: `out = input / sqrt(mean(input²) + eps) * weight`.
    Norm {
        /// Source.
        input: Slot,
        /// `[input.width]` (any offset is already in it).
        weight: VectorId,
        /// Added to the mean square.
        eps: f64,
        /// Destination.
        out: Slot,
    },
    /// One input times one or several matrices.
    Linear {
        /// Source.
        input: Slot,
        /// Matrices that share the input.
        parts: Vec<LinearPart>,
    },
    /// See [`QkNormRopeStoreOp`].
    QkNormRopeStore(QkNormRopeStoreOp),
    /// See [`AttentionOp`].
    Attention(AttentionOp),
    /// `[query | gate]` per head, taken apart: `q` and `gate` are `[heads * head_dim]`.
    SplitGate {
        /// `[heads * 2 * head_dim]`.
        input: Slot,
        /// Queries.
        q: Slot,
        /// Gates.
        gate: Slot,
        /// Width of a head.
        head_dim: usize,
    },
    /// See [`MlaStoreOp`].
    MlaStore(MlaStoreOp),
    /// See [`MlaAttentionOp`].
    MlaAttention(MlaAttentionOp),
    /// See [`GatedDeltaOp`].
    GatedDelta(GatedDeltaOp),
    /// See [`ShortConvOp`].
    ShortConv(ShortConvOp),
    /// See [`GatedFfnOp`].
    GatedFfn(GatedFfnOp),
    /// See [`MoeOp`].
    Moe(MoeOp),
    /// `into += add`.
    Residual {
        /// What is added.
        add: Slot,
        /// Changed in place.
        into: Slot,
    },
    /// `out = [first | second]`.
    Concat {
        /// The left part.
        first: Slot,
        /// The right part.
        second: Slot,
        /// Destination.
        out: Slot,
    },
    /// `slot *= factor`.
    Scale {
        /// Changed in place.
        slot: Slot,
        /// The factor.
        factor: f32,
    },
    /// See [`HeadOp`].
    Head(HeadOp),
}

/// Operations of the prediction head. They embed the *next* tokens and read hidden states that the executor puts
/// into a slot; their last operation is an [`Op::Head`].
#[derive(Clone, Debug)]
pub struct Draft {
    /// Operations in execution order.
    pub ops: Vec<Op>,
    /// Where the executor puts the hidden states.
    pub hidden: Slot,
    /// What a further draft takes as its hidden states: the head's own output after its norm.
    pub output: Slot,
}

/// A model lowered to operations. No executor needs to know more than this.
#[derive(Clone, Debug)]
pub struct Program {
    /// Operations in execution order.
    pub ops: Vec<Op>,
    /// Operations of every layer, in order; what is before them embeds, what is behind them is the head.
    pub layers: Vec<Range<usize>>,
    /// What the trunk's hidden states are after its final norm: input of [`Program::draft`].
    pub final_hidden: Slot,
    /// The prediction head, if the model has one.
    pub draft: Option<Draft>,
    /// Activation buffers.
    pub slots: Vec<SlotDecl>,
    /// Matrices, in order of first use.
    pub matrices: Vec<MatrixDecl>,
    /// Norm weights and biases, decoded; masks.
    pub vectors: Vec<Vec<f32>>,
    /// Rotary tables; layers with equal ones share an entry.
    pub ropes: Vec<RopeTable>,
    /// What the layers remember.
    pub states: Vec<StateDecl>,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of logits per row.
    pub vocab_size: usize,
    /// Longest context the model was made for.
    pub max_position_embeddings: usize,
}

impl Program {
    /// A program without operations, to be filled.
    pub fn empty(hidden_size: usize, vocab_size: usize, max_position_embeddings: usize) -> Self {
        Self {
            ops: Vec::new(),
            layers: Vec::new(),
            final_hidden: Slot(0),
            draft: None,
            slots: Vec::new(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            ropes: Vec::new(),
            states: Vec::new(),
            hidden_size,
            vocab_size,
            max_position_embeddings,
        }
    }

    /// Reads the spec of a model and lowers it. Every tensor's existence, shape and use are checked here.
    pub fn from_weights(header: &Header, weights: &dyn Weights) -> Result<Self, ModelError> {
        lower::lower(&ModelSpec::new(header, weights)?, weights, None)
    }

    /// [`Program::from_weights`] of what a task mask leaves (docs/behaviour.md §8): layers that are off are not there,
    /// heads and neurons that are off give 0. A mask that does not fit the model is [`ModelError::Mask`].
    pub fn masked(header: &Header, weights: &dyn Weights, mask: &Mask) -> Result<Self, ModelError> {
        lower::lower(&ModelSpec::new(header, weights)?, weights, Some(mask))
    }

    /// Bytes of weights that decoding one token reads: every matrix once, of the embedding one row (unless it is
    /// also the head), of the experts as many as are chosen.
    pub fn bytes_per_token(&self, weights: &dyn Weights) -> Result<u64, ModelError> {
        let mut total: u64 = self.vectors.iter().map(|v| 4 * v.len() as u64).sum();
        for (i, matrix) in self.matrices.iter().enumerate() {
            let bytes = weights.bytes(matrix.tensor)?.len() as u64;
            total += if self.only_embeds(MatrixId(i)) { bytes / matrix.rows.max(1) as u64 } else { bytes };
        }
        for op in &self.ops {
            if let Op::Moe(moe) = op {
                let mut all = 0u64;
                for id in moe.experts.iter().flat_map(|e| [e.gate, e.up, e.down]) {
                    all += weights.bytes(self.matrices[id.0].tensor)?.len() as u64;
                }
                let idle = moe.experts.len().saturating_sub(moe.top_k) as u64;
                total -= all / (moe.experts.len().max(1) as u64) * idle;
            }
        }
        Ok(total)
    }

    /// Whether a part of the operations ends with the head.
    pub fn ends_with_head(&self, part: &Range<usize>) -> bool {
        matches!(self.ops[part.clone()].last(), Some(Op::Head(_)))
    }

    /// The program of an executor that runs only some of the operations: it keeps no state for the others.
    /// Whether it drafts is for the caller to say.
    pub fn with_states_of<'a>(mut self, ops: impl Iterator<Item = &'a Op>) -> Self {
        let used: HashSet<StateId> = ops.filter_map(Op::state).collect();
        for (index, state) in self.states.iter_mut().enumerate() {
            if !used.contains(&StateId(index)) {
                *state = StateDecl::Elsewhere;
            }
        }
        self
    }

    fn only_embeds(&self, id: MatrixId) -> bool {
        let embeds = self.ops.iter().any(|op| matches!(op, Op::Embed { table, .. } if *table == id));
        let heads = self.ops.iter().any(|op| matches!(op, Op::Head(head) if head.weight == id));
        embeds && !heads
    }
}
