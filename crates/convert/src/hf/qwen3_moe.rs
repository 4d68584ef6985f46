//! Qwen3-MoE: Qwen3's attention; layers with experts, and dense layers between them where the configuration
//! says so. All layers slide when `use_sliding_window` is set.

use cortiq_cmf::Moe;

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::moe::{self, MoeDefaults, MoeParts};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "qwen3_moe",
    model_types: &["qwen3_moe"],
    architectures: &["Qwen3MoeForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct Qwen3MoeConfig {
    decoder: DecoderConfig,
    /// The experts.
    moe: Moe,
    /// Which layers have experts.
    sparse: Vec<bool>,
    /// Biases on q, k, v and o.
    attention_bias: bool,
    /// Window of all layers, in tokens.
    window: Option<usize>,
}

impl Qwen3MoeConfig {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let class = serde_json::json!({"num_key_value_heads": 4});
        let config = &config.with_defaults(&class);
        let defaults = Defaults { head_dim: None, rope: &[RopeKind::Linear, RopeKind::Yarn] };
        let decoder = DecoderConfig::read(config, &defaults)?;
        let experts =
            MoeDefaults { num_experts: 128, top_k: 8, intermediate_size: 768, shared: None, norm_topk_prob: false };
        Ok(Self {
            moe: moe::read_qwen(config, &experts)?,
            sparse: moe::qwen_sparse_layers(config, decoder.num_layers)?,
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
            window: decoder::qwen_window(config)?,
            decoder,
        })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let Qwen3MoeConfig { decoder, moe, sparse, attention_bias, window } = Qwen3MoeConfig::read(config)?;
    let mut arch = decoder.arch("qwen3_moe");
    decoder::set_sliding(&mut arch, window, vec![true; decoder.num_layers]);
    let parts = Parts { qkv_bias: attention_bias, o_bias: attention_bias, qk_norm: true, ..Parts::default() };
    let tensors = decoder.tensors_by_layer(|list, prefix, layer| {
        let sparse = sparse.get(layer) == Some(&true);
        decoder.layer_tensors(list, prefix, &parts, sparse.then_some((&moe, MoeParts::default())));
    });
    arch.moe = sparse.contains(&true).then_some(moe);
    Ok(Layout { arch, tensors })
}
