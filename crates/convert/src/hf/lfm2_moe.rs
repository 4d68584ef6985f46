//! LFM2-MoE: LFM2 with experts behind a sigmoid router in all layers but the first ones.

use cortiq_cmf::Moe;

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::INTERMEDIATE;
use crate::hf::family::{Family, Layout};
use crate::hf::lfm2::{self, Lfm2Config};
use crate::hf::moe::{self, MoeParts};

pub(crate) const FAMILY: Family = Family {
    name: "lfm2_moe",
    model_types: &["lfm2_moe"],
    architectures: &["Lfm2MoeForCausalLM"],
    read,
    rename: lfm2::rename,
};

/// `config.json` of the family.
struct Lfm2MoeConfig {
    lfm2: Lfm2Config,
    /// `num_experts`, `num_experts_per_tok`, `moe_intermediate_size`, `norm_topk_prob`, `routed_scaling_factor`.
    moe: Moe,
    /// `use_expert_bias`.
    expert_bias: bool,
    /// Layers at the beginning without experts.
    num_dense_layers: usize,
}

impl Lfm2MoeConfig {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        // Unlike in LFM2 this is the width as it is.
        let dense = config.int("intermediate_size", INTERMEDIATE)?.unwrap_or(7168);
        let lfm2 = Lfm2Config::read(config, dense)?;
        let num_experts = moe::num_experts(config, "num_experts", 32)?;
        let moe = Moe {
            num_experts,
            top_k: moe::top_k(config, num_experts, 4)?,
            moe_intermediate_size: config.int("moe_intermediate_size", INTERMEDIATE)?.unwrap_or(1792),
            norm_topk_prob: config.boolean("norm_topk_prob")?.unwrap_or(true),
            router_sigmoid: true,
            routed_scaling_factor: moe::routed_scaling(config, 1.0)?,
            // With a sigmoid the format's default is the family's 1e-6.
            ..Moe::default()
        };
        Ok(Self {
            num_dense_layers: config.int("num_dense_layers", 0..=lfm2.num_layers())?.unwrap_or(2),
            lfm2,
            moe,
            expert_bias: config.boolean("use_expert_bias")?.unwrap_or(true),
        })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let Lfm2MoeConfig { lfm2, moe, expert_bias, num_dense_layers } = Lfm2MoeConfig::read(config)?;
    let parts = MoeParts { expert_bias, shared_gate: false };
    let tensors = lfm2.tensors(|layer| (layer >= num_dense_layers).then_some((&moe, parts)));
    let mut arch = lfm2.arch("lfm2_moe");
    arch.moe = (num_dense_layers < lfm2.num_layers()).then_some(moe);
    Ok(Layout { arch, tensors })
}
