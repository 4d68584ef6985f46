//! What an operation reads and writes: for fusing, for cutting a program in parts, for counting memory.

use super::{LinearPart, MatrixId, Op, Slot, StateId};

impl Op {
    /// Slots that an operation reads.
    pub fn reads(&self) -> Vec<Slot> {
        match self {
            Self::Embed { .. } => vec![],
            Self::Norm { input, .. } | Self::Linear { input, .. } | Self::SplitGate { input, .. } => vec![*input],
            Self::QkNormRopeStore(op) => vec![op.q, op.k, op.v],
            Self::Attention(op) => [Some(op.q), op.gate].into_iter().flatten().collect(),
            Self::MlaStore(op) => vec![op.q, op.kv],
            Self::MlaAttention(op) => vec![op.q],
            Self::GatedDelta(op) => vec![op.qkv, op.z, op.a, op.b],
            Self::ShortConv(op) => vec![op.input],
            Self::GatedFfn(op) => vec![op.input],
            Self::Moe(op) => vec![op.input],
            Self::Residual { add, into } => vec![*add, *into],
            Self::Concat { first, second, .. } => vec![*first, *second],
            Self::Scale { slot, .. } => vec![*slot],
            Self::Head(op) => vec![op.input],
        }
    }

    /// Slots that an operation writes.
    pub fn writes(&self) -> Vec<Slot> {
        match self {
            Self::Embed { out, .. } | Self::Norm { out, .. } | Self::Concat { out, .. } => vec![*out],
            Self::Linear { parts, .. } => parts.iter().map(|part| part.out).collect(),
            Self::SplitGate { q, gate, .. } => vec![*q, *gate],
            Self::QkNormRopeStore(op) => vec![op.q, op.k, op.v],
            Self::Attention(op) => vec![op.out],
            Self::MlaStore(op) => vec![op.q, op.kv],
            Self::MlaAttention(op) => vec![op.out],
            Self::GatedDelta(op) => vec![op.out],
            Self::ShortConv(op) => vec![op.out],
            Self::GatedFfn(op) => vec![op.gate.out, op.up.out, op.down.out],
            Self::Moe(op) => vec![op.out],
            Self::Residual { into, .. } => vec![*into],
            Self::Scale { slot, .. } => vec![*slot],
            Self::Head(_) => vec![],
        }
    }

    /// Matrices that an operation multiplies or looks up.
    pub fn matrices(&self) -> Vec<MatrixId> {
        let of = |parts: &[&LinearPart]| parts.iter().map(|part| part.weight).collect();
        match self {
            Self::Embed { table, .. } => vec![*table],
            Self::Linear { parts, .. } => parts.iter().map(|part| part.weight).collect(),
            Self::MlaAttention(op) => vec![op.kv_b],
            Self::GatedFfn(op) => of(&[&op.gate, &op.up, &op.down]),
            Self::Moe(op) => {
                let shared = op.shared.as_ref();
                let experts = op.experts.iter().chain(shared.map(|shared| &shared.expert));
                let inside = experts.flat_map(|expert| [expert.gate, expert.up, expert.down]);
                std::iter::once(op.router).chain(inside).chain(shared.and_then(|shared| shared.gate)).collect()
            }
            Self::Head(op) => vec![op.weight],
            Self::Norm { .. }
            | Self::QkNormRopeStore(_)
            | Self::Attention(_)
            | Self::SplitGate { .. }
            | Self::MlaStore(_)
            | Self::GatedDelta(_)
            | Self::ShortConv(_)
            | Self::Residual { .. }
            | Self::Concat { .. }
            | Self::Scale { .. } => vec![],
        }
    }

    /// The layer state that an operation reads or writes.
    pub fn state(&self) -> Option<StateId> {
        match self {
            Self::QkNormRopeStore(op) => Some(op.state),
            Self::Attention(op) => Some(op.state),
            Self::MlaStore(op) => Some(op.state),
            Self::MlaAttention(op) => Some(op.state),
            Self::GatedDelta(op) => Some(op.state),
            Self::ShortConv(op) => Some(op.state),
            Self::Embed { .. }
            | Self::Norm { .. }
            | Self::Linear { .. }
            | Self::SplitGate { .. }
            | Self::GatedFfn(_)
            | Self::Moe(_)
            | Self::Residual { .. }
            | Self::Concat { .. }
            | Self::Scale { .. }
            | Self::Head(_) => None,
        }
    }

    /// Whether it is the part of a layer that carries no state: an FFN or experts.
    pub fn is_ffn(&self) -> bool {
        matches!(self, Self::GatedFfn(_) | Self::Moe(_))
    }
}

/// Whether an operation in `rest` reads `slot` before it changes.
pub fn is_read(rest: &[Op], slot: Slot) -> bool {
    for op in rest {
        if op.reads().contains(&slot) {
            return true;
        }
        if op.writes().contains(&slot) {
            return false;
        }
    }
    false
}
