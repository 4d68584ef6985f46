//! Llama: grouped-query attention, optional biases, linear, llama3 and YaRN rotary scaling. Yi,
//! DeepSeek R1 distills and many others use this family unchanged.

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "llama",
    model_types: &["llama"],
    architectures: &["LlamaForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct LlamaConfig {
    decoder: DecoderConfig,
    /// Biases on q, k, v and o.
    attention_bias: bool,
    /// Biases on gate, up and down.
    mlp_bias: bool,
}

impl LlamaConfig {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let defaults = Defaults { head_dim: None, rope: &[RopeKind::Linear, RopeKind::Llama3, RopeKind::Yarn] };
        Ok(Self {
            decoder: DecoderConfig::read(config, &defaults)?,
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
            mlp_bias: config.boolean("mlp_bias")?.unwrap_or(false),
        })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let LlamaConfig { decoder, attention_bias, mlp_bias } = LlamaConfig::read(config)?;
    let parts = Parts { qkv_bias: attention_bias, o_bias: attention_bias, mlp_bias, ..Parts::default() };
    Ok(Layout { arch: decoder.arch("llama"), tensors: decoder.tensors(&parts) })
}
