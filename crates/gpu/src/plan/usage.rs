//! What may be fused, by who reads and writes which slot.

use cortiq_model::{MatrixId, Op, Slot, is_read};

/// Whether `op` is the norm that wrote `slot`: its int8 copy is then as new as the slot.
pub(super) fn is_norm_of(op: &Op, slot: Slot) -> bool {
    matches!(op, Op::Norm { out, .. } if *out == slot)
}

/// What follows an operation.
#[derive(Clone, Copy)]
pub(super) struct Ahead<'a> {
    /// The next operation, if it is recorded together with this one.
    pub(super) next: Option<&'a Op>,
    /// Everything that follows, here or elsewhere.
    pub(super) rest: &'a [Op],
}

impl<'a> Ahead<'a> {
    /// What follows operation `at` when those before `end` are recorded together.
    pub(super) fn of(ops: &'a [Op], at: usize, end: usize) -> Self {
        let rest = ops.get(at + 1..).unwrap_or_default();
        Self { next: rest.first().filter(|_| at + 1 < end), rest }
    }

    /// Whether `slot` is read after the next operation, before it changes.
    pub(super) fn is_read_later(&self, slot: Slot) -> bool {
        is_read(self.rest.get(1..).unwrap_or_default(), slot)
    }
}

/// The slot that the residual right after `op` adds `op`'s only result to, when nobody reads the result afterwards
/// and it is no input of `op`: then `op` may add to it itself.
pub(super) fn residual_after(op: &Op, ahead: Ahead<'_>) -> Option<Slot> {
    let out = match op {
        Op::Linear { parts, .. } if parts.len() == 1 => parts[0].out,
        Op::GatedFfn(op) => op.down.out,
        Op::Moe(op) => op.out,
        _ => return None,
    };
    let Op::Residual { add, into } = ahead.next? else { return None };
    if *add != out || *into == out || op.reads().contains(into) {
        return None;
    }
    (!ahead.is_read_later(out)).then_some(*into)
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
        if op.writes().contains(&slot) {
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
        let fused = |rest: &[Op], end: usize| {
            residual_after(&op, Ahead::of(&[std::slice::from_ref(&op), rest].concat(), 0, end))
        };
        assert_eq!(fused(&[add.clone(), norm(2)], 3), Some(Slot(2)));
        assert_eq!(fused(&[add.clone(), norm(1)], 3), None, "the product is read again");
        assert_eq!(fused(&[add.clone(), norm(1)], 2), None, "the product is read again, elsewhere");
        assert_eq!(fused(&[add.clone(), norm(2)], 1), None, "the residual is added elsewhere");
        assert_eq!(fused(&[add.clone(), linear(1), norm(1)], 4), Some(Slot(2)), "another product is read");
        assert_eq!(fused(&[norm(1), add], 3), None, "the residual does not follow");
        assert_eq!(fused(&[residual(1, 0)], 2), None, "the target is the input");
    }
}
