//! Mixture of experts: the configuration keys of the Qwen families, the tensors of a block, experts
//! that are stored fused.

use cortiq_cmf::{ModelArch, Moe};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{INTERMEDIATE, Tensors};
use crate::hf::family::{Mapping, Piece};

/// Most experts of all layers together; bounds the list of tensors.
const MAX_EXPERTS: usize = 1 << 18;

/// The number of routed experts, which has the key `key`.
pub(crate) fn num_experts(config: &Object<'_>, key: &str, default: usize) -> Result<usize, ConvertError> {
    let layers = config.int("num_hidden_layers", 1..=1 << 12)?.unwrap_or(1);
    let most = MAX_EXPERTS / layers;
    match config.int(key, 1..=most)? {
        Some(experts) => Ok(experts),
        None if default <= most => Ok(default),
        None => Err(config.invalid(key, format!("is missing; {default} are too many for {layers} layers"))),
    }
}

/// Values of absent keys.
pub(crate) struct MoeDefaults {
    /// `num_experts`.
    pub(crate) num_experts: usize,
    /// `num_experts_per_tok`.
    pub(crate) top_k: usize,
    /// `moe_intermediate_size`.
    pub(crate) intermediate_size: usize,
    /// `shared_expert_intermediate_size`; `None` in families without a shared expert.
    pub(crate) shared: Option<usize>,
    /// `norm_topk_prob`.
    pub(crate) norm_topk_prob: bool,
}

/// Reads the keys of a Qwen block: softmax router, experts of one width, a shared expert.
pub(crate) fn read_qwen(config: &Object<'_>, defaults: &MoeDefaults) -> Result<Moe, ConvertError> {
    let num_experts = num_experts(config, config.alias(["num_experts", "num_local_experts"]), defaults.num_experts)?;
    let shared = match defaults.shared {
        Some(width) => Some(config.int("shared_expert_intermediate_size", INTERMEDIATE)?.unwrap_or(width)),
        None => None,
    };
    Ok(Moe {
        num_experts,
        top_k: top_k(config, num_experts, defaults.top_k)?,
        moe_intermediate_size: config.int("moe_intermediate_size", INTERMEDIATE)?.unwrap_or(defaults.intermediate_size),
        norm_topk_prob: config.boolean("norm_topk_prob")?.unwrap_or(defaults.norm_topk_prob),
        shared_expert_intermediate_size: shared,
        ..Moe::default()
    })
}

/// `num_experts_per_tok`, at most `num_experts`.
pub(crate) fn top_k(config: &Object<'_>, num_experts: usize, default: usize) -> Result<usize, ConvertError> {
    match config.int("num_experts_per_tok", 1..=num_experts)? {
        Some(top_k) => Ok(top_k),
        None if default <= num_experts => Ok(default),
        None => Err(config.invalid("num_experts_per_tok", format!("is missing; {default} is more than the experts"))),
    }
}

/// Which layers of a Qwen model have experts: every `decoder_sparse_step`-th, unless `mlp_only_layers` names it.
pub(crate) fn qwen_sparse_layers(config: &Object<'_>, num_layers: usize) -> Result<Vec<bool>, ConvertError> {
    let step = config.int("decoder_sparse_step", 1..=1 << 20)?.unwrap_or(1);
    let dense = config.ints("mlp_only_layers", 0..=1 << 20)?.unwrap_or_default();
    Ok((0..num_layers).map(|layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer)).collect())
}

/// `routed_scaling_factor` as the header has it: `None` is 1.
pub(crate) fn routed_scaling(config: &Object<'_>, default: f64) -> Result<Option<f32>, ConvertError> {
    let factor = config.float("routed_scaling_factor", 1e-6..=1e6)?.unwrap_or(default);
    Ok(((factor - 1.0).abs() > 1e-9).then_some(factor as f32))
}

/// What a block has besides the router and the experts.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MoeParts {
    /// A bias that only chooses (`expert_bias`).
    pub(crate) expert_bias: bool,
    /// A gate on the shared expert.
    pub(crate) shared_gate: bool,
}

/// The tensors of the block `stem` (`….mlp`), in execution order.
pub(crate) fn tensors(list: &mut Tensors, stem: &str, hidden: u64, moe: &Moe, parts: MoeParts) {
    let (experts, width) = (moe.num_experts as u64, moe.moe_intermediate_size as u64);
    list.add(format!("{stem}.gate.weight"), &[experts, hidden]);
    if parts.expert_bias {
        list.add(format!("{stem}.expert_bias"), &[experts]);
    }
    for expert in 0..experts {
        list.mlp(&format!("{stem}.experts.{expert}"), hidden, width, false);
    }
    if let Some(shared) = moe.shared_expert_intermediate_size {
        if parts.shared_gate {
            list.add(format!("{stem}.shared_expert_gate.weight"), &[1, hidden]);
        }
        list.mlp(&format!("{stem}.shared_expert"), hidden, shared as u64, false);
    }
}

/// Cuts fused experts into one tensor per expert: `experts.gate_up_proj` `[experts, 2 * width, hidden]` (gate rows
/// first) and `experts.down_proj` `[experts, hidden, width]`. `None` for every other name.
pub(crate) fn split_fused(name: &str, arch: &ModelArch) -> Option<Mapping> {
    let moe = arch.moe.as_ref()?;
    let (experts, width, hidden) = (moe.num_experts as u64, moe.moe_intermediate_size as u64, arch.hidden_size as u64);
    let mut pieces = Vec::new();
    if let Some(stem) = name.strip_suffix(".experts.gate_up_proj") {
        for expert in 0..experts {
            let (start, middle) = (expert * 2 * width, (expert * 2 + 1) * width);
            pieces.push(Piece::new(format!("{stem}.experts.{expert}.gate_proj.weight"), start..middle));
            pieces.push(Piece::new(format!("{stem}.experts.{expert}.up_proj.weight"), middle..middle + width));
        }
    } else {
        let stem = name.strip_suffix(".experts.down_proj")?;
        for expert in 0..experts {
            let rows = expert * hidden..(expert + 1) * hidden;
            pieces.push(Piece::new(format!("{stem}.experts.{expert}.down_proj.weight"), rows));
        }
    }
    Some(Mapping::Split(pieces))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fused_experts_are_cut_by_rows() {
        let moe = Moe { num_experts: 2, top_k: 1, moe_intermediate_size: 3, norm_topk_prob: true, ..Moe::default() };
        let arch = ModelArch { hidden_size: 4, moe: Some(moe), ..ModelArch::default() };
        let pieces = |name: &str| match split_fused(name, &arch) {
            Some(Mapping::Split(pieces)) => pieces,
            other => panic!("{other:?}"),
        };
        let expected = [
            Piece::new("l.mlp.experts.0.gate_proj.weight", 0..3),
            Piece::new("l.mlp.experts.0.up_proj.weight", 3..6),
            Piece::new("l.mlp.experts.1.gate_proj.weight", 6..9),
            Piece::new("l.mlp.experts.1.up_proj.weight", 9..12),
        ];
        assert_eq!(pieces("l.mlp.experts.gate_up_proj"), expected);
        let expected = [
            Piece::new("l.mlp.experts.0.down_proj.weight", 0..4),
            Piece::new("l.mlp.experts.1.down_proj.weight", 4..8),
        ];
        assert_eq!(pieces("l.mlp.experts.down_proj"), expected);
        assert_eq!(split_fused("l.mlp.experts.0.down_proj.weight", &arch), None);
        let dense = ModelArch { moe: None, ..arch };
        assert_eq!(split_fused("l.mlp.experts.down_proj", &dense), None);
    }
}
