//! Dense FFN and mixture of experts.

use super::Reader;
use crate::{Activation, ModelError};

/// The part of a layer that works on each position alone.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnSpec {
    /// `down(act(gate x) * up x)`.
    Dense {
        /// Prefix of its tensors, `model.layers.3.mlp`.
        prefix: String,
        /// Rows of gate and up; may differ from layer to layer.
        intermediate_size: usize,
        /// Activation of the gate.
        activation: Activation,
    },
    /// Some of many FFNs, chosen per position.
    Moe(MoeSpec),
}

/// How router logits become scores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouterScoring {
    /// Softmax over all experts.
    Softmax,
    /// A sigmoid of each.
    Sigmoid,
}

/// Experts in groups: only those of the groups with the best two-expert sums may be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups; divides the experts.
    pub count: usize,
    /// Groups that may be chosen from.
    pub kept: usize,
}

/// An FFN that every position uses beside its experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedExpertSpec {
    /// Rows of its gate and up.
    pub intermediate_size: usize,
    /// Its output is multiplied by `sigmoid(shared_expert_gate · x)`.
    pub gated: bool,
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq)]
pub struct MoeSpec {
    /// Prefix of its tensors, `model.layers.3.mlp`.
    pub prefix: String,
    /// Experts.
    pub num_experts: usize,
    /// Experts chosen per position.
    pub top_k: usize,
    /// Rows of each expert's gate and up.
    pub intermediate_size: usize,
    /// Scores.
    pub scoring: RouterScoring,
    /// A bias chooses, but does not weigh.
    pub selection_bias: bool,
    /// Groups.
    pub groups: Option<ExpertGroups>,
    /// The chosen weights are divided by their sum plus this.
    pub normalise: Option<f64>,
    /// Factor on the weights.
    pub scale: f32,
    /// The shared expert.
    pub shared: Option<SharedExpertSpec>,
    /// Activation of the gates.
    pub activation: Activation,
}

impl Reader<'_> {
    pub(super) fn ffn(&self, layer: &str) -> Result<FfnSpec, ModelError> {
        let prefix = format!("{layer}.mlp");
        let activation = match self.arch.hidden_act.as_str() {
            "silu" => Activation::Silu,
            "gelu_tanh" => Activation::GeluTanh,
            other => return Err(ModelError::Unsupported(format!("activation `{other}`"))),
        };
        if self.has(&format!("{prefix}.gate.weight")) {
            return Ok(FfnSpec::Moe(self.moe(prefix, activation)?));
        }
        // Defragmented files have fewer neurons in some layers, so the tensor decides.
        let intermediate_size = self.rows(&format!("{prefix}.gate_proj.weight"))?;
        Ok(FfnSpec::Dense { prefix, intermediate_size, activation })
    }

    fn moe(&self, prefix: String, activation: Activation) -> Result<MoeSpec, ModelError> {
        let Some(moe) = &self.arch.moe else {
            return Err(ModelError::Unsupported(format!(
                "`{prefix}.gate.weight` is a router, but the header has no `moe`"
            )));
        };
        let groups = moe.n_group.map(|count| ExpertGroups { count, kept: moe.topk_group.unwrap_or(count) });
        let per_group = groups.map_or(moe.num_experts, |g| moe.num_experts / g.count.max(1));
        let choice = groups.map_or(moe.num_experts, |g| g.kept * per_group);
        if moe.top_k == 0 || moe.top_k > choice || groups.is_some_and(|g| per_group < 2 || g.kept > g.count) {
            let reason = format!("{} of {} experts cannot be chosen in these groups", moe.top_k, moe.num_experts);
            return Err(ModelError::Header { field: "moe", reason });
        }
        let shared_gate = format!("{prefix}.shared_expert.gate_proj.weight");
        let shared = match self.has(&shared_gate) {
            true => Some(SharedExpertSpec {
                intermediate_size: self.rows(&shared_gate)?,
                gated: self.has(&format!("{prefix}.shared_expert_gate.weight")),
            }),
            false => None,
        };
        let (scoring, default_eps) =
            if moe.router_sigmoid { (RouterScoring::Sigmoid, 1e-6) } else { (RouterScoring::Softmax, 0.0) };
        Ok(MoeSpec {
            num_experts: moe.num_experts,
            top_k: moe.top_k,
            intermediate_size: self.rows(&format!("{prefix}.experts.0.gate_proj.weight"))?,
            scoring,
            selection_bias: self.has(&format!("{prefix}.expert_bias")),
            groups,
            normalise: moe.norm_topk_prob.then(|| moe.norm_topk_eps.unwrap_or(default_eps)),
            scale: moe.routed_scaling_factor.unwrap_or(1.0),
            shared,
            activation,
            prefix,
        })
    }
}
