//! Gated FFN.

use cortiq_model::{GatedFfnOp, ModelError};

use super::elementwise::activate;
use super::linear;
use crate::executor::{Model, Run};

/// Values of the activation that a worker takes at a time.
const PART: usize = 2048;

/// See [`GatedFfnOp`]: gate and up are one dispatch, down another.
pub(crate) fn gated_ffn(model: &Model, run: &mut Run, op: &GatedFfnOp) -> Result<(), ModelError> {
    linear(model, run, op.input, &[op.gate, op.up])?;
    let Run { slots, pool, .. } = run;
    let mut gate = std::mem::take(&mut slots[op.gate.out.0]);
    let up = &slots[op.up.out.0];
    let done = pool.run_parts(&mut gate, PART, 1, |_, index, gate| {
        activate(model.isa, op.activation, gate, &up[index * PART..]);
    });
    slots[op.gate.out.0] = gate;
    done?;
    linear(model, run, op.gate.out, &[op.down])
}
