//! Gated FFN.

use cortiq_model::{GatedFfnOp, ModelError};

use super::linear::linear;
use super::{Slots, is_off};
use crate::Model;

/// `down(act(gate x) * up x)`.
pub(crate) fn gated_ffn(model: &Model, slots: &mut Slots, op: &GatedFfnOp) -> Result<(), ModelError> {
    linear(model, slots, op.input, &op.gate)?;
    linear(model, slots, op.input, &op.up)?;
    let up = std::mem::take(&mut slots[op.up.out.0]);
    let (width, mask) = (model.width(op.gate.out), op.neuron_mask.map(|id| model.vector(id)));
    for (i, (gate, up)) in slots[op.gate.out.0].iter_mut().zip(&up).enumerate() {
        *gate = if is_off(mask, i % width) { 0.0 } else { op.activation.apply(*gate) * up };
    }
    slots[op.up.out.0] = up;
    linear(model, slots, op.gate.out, &op.down)
}
