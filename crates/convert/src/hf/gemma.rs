//! Gemma: norms with `1 + weight`, embeddings times `sqrt(hidden_size)`, GELU.

use cortiq_cmf::{ModelArch, NormStyle};
use serde_json::json;

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "gemma",
    model_types: &["gemma"],
    architectures: &["GemmaForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct GemmaConfig {
    decoder: DecoderConfig,
    /// Biases on q, k, v and o.
    attention_bias: bool,
}

impl GemmaConfig {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        refuse_bidirectional(config)?;
        let class = json!({"tie_word_embeddings": true, "hidden_act": "gelu_pytorch_tanh"});
        // The first checkpoints say `gelu` and mean the tanh form, which transformers uses for all of them.
        let tanh = json!({"hidden_act": "gelu_pytorch_tanh"});
        let gelu = config.get("hidden_activation").is_none() && config.string("hidden_act")? == Some("gelu");
        let config = &if gelu { config.overlaid(&tanh) } else { config.clone() };
        let config = &config.with_defaults(&class);
        let defaults = Defaults { head_dim: Some(256), rope: &[RopeKind::Linear] };
        Ok(Self {
            decoder: DecoderConfig::read(config, &defaults)?,
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
        })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let GemmaConfig { decoder, attention_bias } = GemmaConfig::read(config)?;
    let parts = Parts { qkv_bias: attention_bias, o_bias: attention_bias, ..Parts::default() };
    Ok(Layout { arch: arch(&decoder, "gemma"), tensors: decoder.tensors(&parts) })
}

/// What the first three generations of Gemma share.
pub(crate) fn arch(decoder: &DecoderConfig, arch_name: &str) -> ModelArch {
    ModelArch { norm_style: NormStyle::Gemma, embed_multiplier: embed_multiplier(decoder), ..decoder.arch(arch_name) }
}

/// `sqrt(hidden_size)`, not rounded to the weights' dtype.
pub(crate) fn embed_multiplier(decoder: &DecoderConfig) -> f32 {
    (decoder.hidden_size as f64).sqrt() as f32
}

/// Embedding models of the family look ahead.
pub(crate) fn refuse_bidirectional(config: &Object<'_>) -> Result<(), ConvertError> {
    match config.boolean("use_bidirectional_attention")? {
        Some(true) => Err(config.unsupported("use_bidirectional_attention", true, "attention is causal")),
        _ => Ok(()),
    }
}
