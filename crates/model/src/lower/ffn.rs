//! Dense gated FFN and mixture of experts.

use super::Builder;
use crate::{Activation, Expert, GatedFfnOp, ModelError, MoeOp, MoeSpec, Op, SharedExpert, Slot, VectorId};

/// A dense FFN.
pub(super) struct Dense<'a> {
    /// Prefix of its tensors.
    pub(super) prefix: &'a str,
    /// Neurons.
    pub(super) intermediate_size: usize,
    /// Activation of the gate.
    pub(super) activation: Activation,
    /// `[intermediate_size]`, 0 for neurons that are off.
    pub(super) neuron_mask: Option<VectorId>,
}

/// `out = down(act(gate input) * up input)`; `input` and `out` are `[hidden_size]`.
pub(super) fn dense(b: &mut Builder<'_>, ffn: &Dense<'_>, input: Slot, out: Slot) -> Result<(), ModelError> {
    let &Dense { prefix, intermediate_size, activation, neuron_mask } = ffn;
    let hidden_size = b.program.hidden_size;
    let gate = b.slot("gate", intermediate_size);
    let up = b.slot("up", intermediate_size);
    let gate = b.linear(&format!("{prefix}.gate_proj"), hidden_size, gate)?;
    let up = b.linear(&format!("{prefix}.up_proj"), hidden_size, up)?;
    let down = b.linear(&format!("{prefix}.down_proj"), intermediate_size, out)?;
    b.push(Op::GatedFfn(GatedFfnOp { input, gate, up, down, activation, neuron_mask }));
    Ok(())
}

/// `out = Σ weight_e * expert_e(input)`; `input` and `out` are `[hidden_size]`.
pub(super) fn moe(b: &mut Builder<'_>, spec: &MoeSpec, input: Slot, out: Slot) -> Result<(), ModelError> {
    let hidden_size = b.program.hidden_size;
    let name = |suffix: &str| format!("{}.{suffix}", spec.prefix);
    let selection_bias = match spec.selection_bias {
        true => Some(b.vector(&name("expert_bias"), spec.num_experts, 0.0)?),
        false => None,
    };
    let experts = (0..spec.num_experts)
        .map(|e| expert(b, &name(&format!("experts.{e}")), spec.intermediate_size))
        .collect::<Result<_, _>>()?;
    let shared = match spec.shared {
        Some(shared) => Some(SharedExpert {
            expert: expert(b, &name("shared_expert"), shared.intermediate_size)?,
            intermediate_size: shared.intermediate_size,
            gate: match shared.gated {
                true => Some(b.matrix(&name("shared_expert_gate.weight"), 1, hidden_size)?),
                false => None,
            },
        }),
        None => None,
    };
    let op = MoeOp {
        input,
        out,
        router: b.matrix(&name("gate.weight"), spec.num_experts, hidden_size)?,
        scoring: spec.scoring,
        selection_bias,
        groups: spec.groups,
        top_k: spec.top_k,
        normalise: spec.normalise,
        scale: spec.scale,
        experts,
        intermediate_size: spec.intermediate_size,
        shared,
        activation: spec.activation,
    };
    b.push(Op::Moe(op));
    Ok(())
}

fn expert(b: &mut Builder<'_>, prefix: &str, intermediate_size: usize) -> Result<Expert, ModelError> {
    let hidden_size = b.program.hidden_size;
    Ok(Expert {
        gate: b.matrix(&format!("{prefix}.gate_proj.weight"), intermediate_size, hidden_size)?,
        up: b.matrix(&format!("{prefix}.up_proj.weight"), intermediate_size, hidden_size)?,
        down: b.matrix(&format!("{prefix}.down_proj.weight"), hidden_size, intermediate_size)?,
    })
}
