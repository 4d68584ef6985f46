//! Which slots an operation reads and writes: what fusing needs to know.

use cortiq_model::{MatrixId, Op, Slot};

/// Slots that an operation reads.
pub(super) fn reads(op: &Op) -> Vec<Slot> {
    match op {
        Op::Embed { .. } => vec![],
        Op::Norm { input, .. } | Op::Linear { input, .. } | Op::SplitGate { input, .. } => vec![*input],
        Op::QkNormRopeStore(op) => vec![op.q, op.k, op.v],
        Op::Attention(op) => [Some(op.q), op.gate].into_iter().flatten().collect(),
        Op::MlaStore(op) => vec![op.q, op.kv],
        Op::MlaAttention(op) => vec![op.q],
        Op::GatedDelta(op) => vec![op.qkv, op.z, op.a, op.b],
        Op::ShortConv(op) => vec![op.input],
        Op::GatedFfn(op) => vec![op.input],
        Op::Moe(op) => vec![op.input],
        Op::Residual { add, into } => vec![*add, *into],
        Op::Concat { first, second, .. } => vec![*first, *second],
        Op::Scale { slot, .. } => vec![*slot],
        Op::Head(op) => vec![op.input],
    }
}

/// Slots that an operation writes.
pub(super) fn writes(op: &Op) -> Vec<Slot> {
    match op {
        Op::Embed { out, .. } | Op::Norm { out, .. } | Op::Concat { out, .. } => vec![*out],
        Op::Linear { parts, .. } => parts.iter().map(|part| part.out).collect(),
        Op::SplitGate { q, gate, .. } => vec![*q, *gate],
        Op::QkNormRopeStore(op) => vec![op.q, op.k, op.v],
        Op::Attention(op) => vec![op.out],
        Op::MlaStore(op) => vec![op.q, op.kv],
        Op::MlaAttention(op) => vec![op.out],
        Op::GatedDelta(op) => vec![op.out],
        Op::ShortConv(op) => vec![op.out],
        Op::GatedFfn(op) => vec![op.gate.out, op.up.out, op.down.out],
        Op::Moe(op) => vec![op.out],
        Op::Residual { into, .. } => vec![*into],
        Op::Scale { slot, .. } => vec![*slot],
        Op::Head(_) => vec![],
    }
}

/// Whether `op` is the norm that wrote `slot`: its int8 copy is then as new as the slot.
pub(super) fn is_norm_of(op: &Op, slot: Slot) -> bool {
    matches!(op, Op::Norm { out, .. } if *out == slot)
}

/// The slot that the residual right after `op` adds `op`'s only result to, when nobody reads the result afterwards
/// and it is no input of `op`: then `op` may add to it itself.
pub(super) fn residual_after(op: &Op, rest: &[Op]) -> Option<Slot> {
    let out = match op {
        Op::Linear { parts, .. } if parts.len() == 1 => parts[0].out,
        Op::GatedFfn(op) => op.down.out,
        Op::Moe(op) => op.out,
        _ => return None,
    };
    let Op::Residual { add, into } = rest.first()? else { return None };
    if *add != out || *into == out || reads(op).contains(into) {
        return None;
    }
    (!is_read(&rest[1..], out)).then_some(*into)
}

/// Whether an operation in `rest` reads `slot` before it changes.
pub(super) fn is_read(rest: &[Op], slot: Slot) -> bool {
    for op in rest {
        if reads(op).contains(&slot) {
            return true;
        }
        if writes(op).contains(&slot) {
            return false;
        }
    }
    false
}

/// Whether a product in `rest` reads `slot` before it changes, with matrices that `wanted` accepts.
pub(super) fn reads_as_input(rest: &[Op], slot: Slot, wanted: impl Fn(&[MatrixId]) -> bool) -> bool {
    for op in rest {
        let matrices: Vec<MatrixId> = match op {
            Op::Linear { input, parts } if *input == slot => parts.iter().map(|part| part.weight).collect(),
            Op::GatedFfn(op) if op.input == slot => vec![op.gate.weight, op.up.weight],
            Op::Moe(op) if op.input == slot => {
                op.experts.first().map(|expert| vec![expert.gate, expert.up]).unwrap_or_default()
            }
            _ => vec![],
        };
        if wanted(&matrices) {
            return true;
        }
        if writes(op).contains(&slot) {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;
    use cortiq_model::LinearPart;

    fn linear(out: usize) -> Op {
        let part = LinearPart { weight: MatrixId(0), bias: None, out: Slot(out) };
        Op::Linear { input: Slot(0), parts: vec![part] }
    }

    fn residual(add: usize, into: usize) -> Op {
        Op::Residual { add: Slot(add), into: Slot(into) }
    }

    #[test]
    fn a_residual_is_fused_only_when_nobody_misses_the_product() {
        let norm = |input| Op::Norm { input: Slot(input), weight: cortiq_model::VectorId(0), eps: 0.0, out: Slot(9) };
        let (op, add) = (linear(1), residual(1, 2));
        assert_eq!(residual_after(&op, &[add.clone(), norm(2)]), Some(Slot(2)));
        assert_eq!(residual_after(&op, &[add.clone(), norm(1)]), None, "the product is read again");
        assert_eq!(residual_after(&op, &[add.clone(), linear(1), norm(1)]), Some(Slot(2)), "another product is read");
        assert_eq!(residual_after(&op, &[norm(1), add]), None, "the residual does not follow");
        assert_eq!(residual_after(&op, &[residual(1, 0)]), None, "the target is the input");
    }
}
