//! Gated FFN.

use cortiq_model::{GatedFfnOp, ModelError};

use super::Slots;
use super::linear::linear;
use crate::Model;

/// `down(act(gate x) * up x)`.
pub(crate) fn gated_ffn(model: &Model, slots: &mut Slots, op: &GatedFfnOp) -> Result<(), ModelError> {
    linear(model, slots, op.input, &op.gate)?;
    linear(model, slots, op.input, &op.up)?;
    let up = std::mem::take(&mut slots[op.up.out.0]);
    for (gate, up) in slots[op.gate.out.0].iter_mut().zip(&up) {
        *gate = op.activation.apply(*gate) * up;
    }
    slots[op.up.out.0] = up;
    linear(model, slots, op.gate.out, &op.down)
}
