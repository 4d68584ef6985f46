//! Embedding rows, norms, sums and factors.

use cortiq_model::{MatrixId, ModelError, Slot, VectorId};

use super::{Slots, rms_norm};
use crate::Model;

/// `out[t] = table[token[t]] * scale`.
pub(crate) fn embed(
    model: &Model,
    slots: &mut Slots,
    tokens: &[u32],
    table: MatrixId,
    scale: f32,
    out: Slot,
) -> Result<(), ModelError> {
    let view = model.matrix(table)?;
    for (row, &token) in slots[out.0].chunks_exact_mut(model.width(out)).zip(tokens) {
        view.decode_row(token as usize, row);
        row.iter_mut().for_each(|x| *x *= scale);
    }
    Ok(())
}

/// RMS norm of every row.
pub(crate) fn norm(model: &Model, slots: &mut Slots, input: Slot, weight: VectorId, eps: f64, out: Slot) {
    slots[out.0] = slots[input.0].clone();
    for row in slots[out.0].chunks_exact_mut(model.width(out)) {
        rms_norm(row, model.vector(weight), eps);
    }
}

/// `into += add`.
pub(crate) fn residual(slots: &mut Slots, add: Slot, into: Slot) {
    let mut sum = std::mem::take(&mut slots[into.0]);
    for (x, y) in sum.iter_mut().zip(&slots[add.0]) {
        *x += y;
    }
    slots[into.0] = sum;
}

/// `slot *= factor`.
pub(crate) fn scale(slots: &mut Slots, slot: Slot, factor: f32) {
    slots[slot.0].iter_mut().for_each(|x| *x *= factor);
}

/// `[query | gate]` of every head to two slots.
pub(crate) fn split_gate(slots: &mut Slots, input: Slot, q: Slot, gate: Slot, head_dim: usize) {
    let both = std::mem::take(&mut slots[input.0]);
    for (head, pair) in both.chunks_exact(2 * head_dim).enumerate() {
        let at = head * head_dim..(head + 1) * head_dim;
        slots[q.0][at.clone()].copy_from_slice(&pair[..head_dim]);
        slots[gate.0][at].copy_from_slice(&pair[head_dim..]);
    }
    slots[input.0] = both;
}

/// `out = [first | second]`.
pub(crate) fn concat(model: &Model, slots: &mut Slots, first: Slot, second: Slot, out: Slot) {
    let (left, right) = (model.width(first), model.width(second));
    let mut joined = std::mem::take(&mut slots[out.0]);
    let parts = slots[first.0].chunks_exact(left).zip(slots[second.0].chunks_exact(right));
    for (row, (a, b)) in joined.chunks_exact_mut(left + right).zip(parts) {
        row[..left].copy_from_slice(a);
        row[left..].copy_from_slice(b);
    }
    slots[out.0] = joined;
}
