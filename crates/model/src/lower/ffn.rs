//! Dense gated FFN.

use super::Builder;
use crate::{Activation, GatedFfnOp, ModelError, Op, Slot};

/// `out = down(act(gate input) * up input)`; `input` and `out` are `[hidden_size]`.
pub(super) fn lower(
    b: &mut Builder<'_>,
    prefix: &str,
    intermediate_size: usize,
    activation: Activation,
    input: Slot,
    out: Slot,
) -> Result<(), ModelError> {
    let hidden_size = b.program.hidden_size;
    let gate = b.slot("gate", intermediate_size);
    let up = b.slot("up", intermediate_size);
    let gate = b.linear(&format!("{prefix}.gate_proj"), hidden_size, gate)?;
    let up = b.linear(&format!("{prefix}.up_proj"), hidden_size, up)?;
    let down = b.linear(&format!("{prefix}.down_proj"), intermediate_size, out)?;
    b.push(Op::GatedFfn(GatedFfnOp { input, gate, up, down, activation }));
    Ok(())
}
