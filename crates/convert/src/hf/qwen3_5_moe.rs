//! Qwen3.5-MoE: the hybrid decoder with experts in every layer, fused or one by one in the checkpoint.

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::family::{Family, Layout};
use crate::hf::hybrid::{self, HybridConfig};
use crate::hf::moe::{self, MoeDefaults};

pub(crate) const FAMILY: Family = Family {
    name: "qwen3_5_moe",
    model_types: &["qwen3_5_moe", "qwen3_5_moe_text"],
    architectures: &["Qwen3_5MoeForCausalLM", "Qwen3_5MoeForConditionalGeneration"],
    read,
    rename: hybrid::rename,
};

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let defaults =
        MoeDefaults { num_experts: 256, top_k: 8, intermediate_size: 512, shared: Some(512), norm_topk_prob: true };
    let moe = moe::read_qwen(config, &defaults)?;
    if !moe.norm_topk_prob {
        return Err(config.unsupported("norm_topk_prob", false, "the family's router always normalises"));
    }
    // No layer is dense; the experts' width is the nominal one.
    let hybrid = HybridConfig::read(config, moe.moe_intermediate_size)?;
    Ok(hybrid.layout("qwen3_5_moe_text", Some(moe), &vec![true; hybrid.num_layers()]))
}
