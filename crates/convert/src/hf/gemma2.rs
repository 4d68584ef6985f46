//! Gemma 2: norms on inputs and outputs, caps on scores and logits, every other layer slides.

use serde_json::json;

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Norms, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::gemma;
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "gemma2",
    model_types: &["gemma2"],
    architectures: &["Gemma2ForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct Gemma2Config {
    decoder: DecoderConfig,
    /// Biases on q, k, v and o.
    attention_bias: bool,
    /// The scores' scale is `1 / sqrt(this)`.
    query_pre_attn_scalar: f64,
    /// Cap of the scores; 50 when absent, none when null.
    attn_logit_softcapping: Option<f64>,
    /// Cap of the logits; 30 when absent, none when null.
    final_logit_softcapping: Option<f64>,
    /// Window in tokens; none when null.
    window: Option<usize>,
    /// `layer_types`, else layers 0, 2, 4, …
    slides: Vec<bool>,
}

impl Gemma2Config {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        gemma::refuse_bidirectional(config)?;
        let class = json!({
            "num_key_value_heads": 4, "tie_word_embeddings": true, "hidden_activation": "gelu_pytorch_tanh",
        });
        let window = match config.int("sliding_window", 1..=1 << 31)? {
            None if !config.has_key("sliding_window") => Some(4096),
            window => window,
        };
        let config = &config.with_defaults(&class);
        let defaults = Defaults { head_dim: Some(256), rope: &[RopeKind::Linear] };
        let decoder = DecoderConfig::read(config, &defaults)?;
        let slides = match decoder::sliding_types(config, decoder.num_layers)? {
            Some(slides) => slides,
            None => (0..decoder.num_layers).map(|layer| layer.is_multiple_of(2)).collect(),
        };
        Ok(Self {
            decoder,
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
            query_pre_attn_scalar: query_pre_attn_scalar(config)?,
            attn_logit_softcapping: softcap(config, "attn_logit_softcapping", Some(50.0))?,
            final_logit_softcapping: softcap(config, "final_logit_softcapping", Some(30.0))?,
            window,
            slides,
        })
    }
}

/// `query_pre_attn_scalar`, 256 when absent.
pub(crate) fn query_pre_attn_scalar(config: &Object<'_>) -> Result<f64, ConvertError> {
    Ok(config.float("query_pre_attn_scalar", 1e-6..=1e9)?.unwrap_or(256.0))
}

/// The cap with the key `key`; `absent` when there is no such key, none when it is null.
pub(crate) fn softcap(config: &Object<'_>, key: &str, absent: Option<f64>) -> Result<Option<f64>, ConvertError> {
    match config.float(key, 1e-6..=1e9)? {
        None if !config.has_key(key) => Ok(absent),
        cap => Ok(cap),
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let config = Gemma2Config::read(config)?;
    let mut arch = gemma::arch(&config.decoder, "gemma2");
    arch.query_pre_attn_scalar = Some(config.query_pre_attn_scalar);
    arch.attn_logit_softcapping = config.attn_logit_softcapping;
    arch.final_logit_softcapping = config.final_logit_softcapping;
    decoder::set_sliding(&mut arch, config.window, config.slides);
    let bias = config.attention_bias;
    let parts = Parts { qkv_bias: bias, o_bias: bias, norms: Norms::Sandwich, ..Parts::default() };
    Ok(Layout { arch, tensors: config.decoder.tensors(&parts) })
}
