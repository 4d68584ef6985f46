//! Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention; layers with experts and a gated shared expert, and dense
//! layers between them where the configuration says so.

use cortiq_cmf::Moe;

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::moe::{self, MoeDefaults, MoeParts};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "qwen2_moe",
    model_types: &["qwen2_moe"],
    architectures: &["Qwen2MoeForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct Qwen2MoeConfig {
    decoder: DecoderConfig,
    /// The experts.
    moe: Moe,
    /// Which layers have experts.
    sparse: Vec<bool>,
    /// Biases on q, k and v.
    qkv_bias: bool,
    /// Window in tokens.
    window: Option<usize>,
    /// Which layers use the window.
    slides: Vec<bool>,
}

impl Qwen2MoeConfig {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let defaults = Defaults { head_dim: None, rope: &[RopeKind::Linear, RopeKind::Yarn] };
        let decoder = DecoderConfig::read(config, &defaults)?;
        let experts = MoeDefaults {
            num_experts: 60,
            top_k: 4,
            intermediate_size: 1408,
            shared: Some(5632),
            norm_topk_prob: false,
        };
        let window = decoder::qwen_window(config)?;
        let slides = match decoder::sliding_types(config, decoder.num_layers)? {
            Some(slides) => slides,
            None if window.is_none() => vec![false; decoder.num_layers],
            // Releases of transformers disagree on which layers then slide.
            None => {
                return Err(config.unsupported("use_sliding_window", true, "layer_types must say which layers slide"));
            }
        };
        Ok(Self {
            moe: moe::read_qwen(config, &experts)?,
            sparse: moe::qwen_sparse_layers(config, decoder.num_layers)?,
            qkv_bias: config.boolean("qkv_bias")?.unwrap_or(true),
            window,
            slides,
            decoder,
        })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let Qwen2MoeConfig { decoder, moe, sparse, qkv_bias, window, slides } = Qwen2MoeConfig::read(config)?;
    let mut arch = decoder.arch("qwen2_moe");
    decoder::set_sliding(&mut arch, window, slides);
    let parts = Parts { qkv_bias, ..Parts::default() };
    let experts = MoeParts { shared_gate: true, ..MoeParts::default() };
    let tensors = decoder.tensors_by_layer(|list, prefix, layer| {
        let sparse = sparse.get(layer) == Some(&true);
        decoder.layer_tensors(list, prefix, &parts, sparse.then_some((&moe, experts)));
    });
    arch.moe = sparse.contains(&true).then_some(moe);
    Ok(Layout { arch, tensors })
}
