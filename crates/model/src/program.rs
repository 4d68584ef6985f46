//! The Program: a model as a flat list of typed operations over named activation slots.

use cortiq_cmf::{Dtype, Header};

use crate::{KvLayer, ModelError, ModelSpec, RopeTable, TensorId, Weights, lower};

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

/// Index into [`Program::kv_layers`].
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

/// One weight of a [`Op::Linear`]: `out = input · weightᵀ + bias`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinearPart {
    /// `[out.width, input.width]`.
    pub weight: MatrixId,
    /// `[out.width]`.
    pub bias: Option<VectorId>,
    /// Destination.
    pub out: Slot,
}

/// Norms and rotates queries in place; norms, rotates and stores keys; stores values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QkNormRopeStoreOp {
    /// `[heads * head_dim]`, changed in place.
    pub q: Slot,
    /// `[kv_heads * head_dim]`, changed in place.
    pub k: Slot,
    /// `[kv_heads * head_dim]`.
    pub v: Slot,
    /// Cache that receives keys and values.
    pub state: StateId,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Norm weights of queries and keys, `[head_dim]` each (any offset is already in the weight).
    pub qk_norm: Option<(VectorId, VectorId)>,
    /// Epsilon of these norms.
    pub eps: f64,
    /// Frequencies.
    pub rope: RopeId,
}

/// Softmax attention of the batch's queries over everything their sequences have stored, causal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionOp {
    /// `[heads * head_dim]`, from [`Op::QkNormRopeStore`].
    pub q: Slot,
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
    /// See [`GatedFfnOp`].
    GatedFfn(GatedFfnOp),
    /// `into += add`.
    Residual {
        /// What is added.
        add: Slot,
        /// Changed in place.
        into: Slot,
    },
    /// See [`HeadOp`].
    Head(HeadOp),
}

/// A model lowered to operations. No executor needs to know more than this.
#[derive(Clone, Debug)]
pub struct Program {
    /// Operations in execution order.
    pub ops: Vec<Op>,
    /// Activation buffers.
    pub slots: Vec<SlotDecl>,
    /// Matrices, in order of first use.
    pub matrices: Vec<MatrixDecl>,
    /// Norm weights and biases, decoded.
    pub vectors: Vec<Vec<f32>>,
    /// Rotary tables; layers with equal ones share an entry.
    pub ropes: Vec<RopeTable>,
    /// Geometry of the attention caches.
    pub kv_layers: Vec<KvLayer>,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of logits per row.
    pub vocab_size: usize,
    /// Longest context the model was made for.
    pub max_position_embeddings: usize,
}

impl Program {
    /// Reads the spec of a model and lowers it. Every tensor's existence, shape and use are checked here.
    pub fn from_weights(header: &Header, weights: &dyn Weights) -> Result<Self, ModelError> {
        lower::lower(&ModelSpec::new(header, weights)?, weights)
    }

    /// Bytes of weights that decoding one token reads: every matrix once, of the embedding one row (unless it is
    /// also the head).
    pub fn bytes_per_token(&self, weights: &dyn Weights) -> Result<u64, ModelError> {
        let mut total = self.vectors.iter().map(|v| 4 * v.len() as u64).sum();
        for (i, matrix) in self.matrices.iter().enumerate() {
            let bytes = weights.bytes(matrix.tensor)?.len() as u64;
            total += if self.only_embeds(MatrixId(i)) { bytes / matrix.rows.max(1) as u64 } else { bytes };
        }
        Ok(total)
    }

    fn only_embeds(&self, id: MatrixId) -> bool {
        let embeds = self.ops.iter().any(|op| matches!(op, Op::Embed { table, .. } if *table == id));
        let heads = self.ops.iter().any(|op| matches!(op, Op::Head(head) if head.weight == id));
        embeds && !heads
    }
}
