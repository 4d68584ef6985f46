//! Gemma 3, text only and the text part of the multimodal checkpoints: as Gemma 2 with norms on the heads of q
//! and k; most layers slide, and those have a rotary base of their own, which is never scaled.

use cortiq_cmf::ModelArch;
use serde_json::{Value, json};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Heads, INTERMEDIATE, Norms, Parts};
use crate::hf::family::{Family, Layout, Mapping};
use crate::hf::rope::{self, Rope, RopeKind};
use crate::hf::{gemma, gemma2};

pub(crate) const FAMILY: Family = Family {
    name: "gemma3",
    model_types: &["gemma3", "gemma3_text"],
    architectures: &["Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"],
    read,
    rename,
};

/// `config.json` of the family.
struct Gemma3Config {
    /// With the rotary parameters of the global layers.
    decoder: DecoderConfig,
    /// Rotary base of the sliding layers.
    rope_local_base_freq: f64,
    /// Biases on q, k, v and o.
    attention_bias: bool,
    /// The scores' scale is `1 / sqrt(this)`.
    query_pre_attn_scalar: f64,
    /// Cap of the scores.
    attn_logit_softcapping: Option<f64>,
    /// Cap of the logits.
    final_logit_softcapping: Option<f64>,
    /// Window in tokens.
    window: usize,
    /// Every how many layers one is global.
    pattern: usize,
    /// `layer_types`, else what `pattern` says.
    slides: Vec<bool>,
}

/// Published multimodal configurations leave out what is equal to the class's defaults.
fn class_defaults() -> Value {
    json!({
        "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "sliding_window": 4096,
        "rope_theta": 1e6, "rope_local_base_freq": 1e4,
    })
}

impl Gemma3Config {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        gemma::refuse_bidirectional(config)?;
        let class = class_defaults();
        let config = &config.with_defaults(&class);
        let heads = Heads::read(config, None)?;
        let intermediate_size = config.required_int("intermediate_size", INTERMEDIATE)?;
        let (global, local) = ropes(config)?;
        let decoder = DecoderConfig::read_with(config, heads, intermediate_size, global)?;
        let key = config.alias(["sliding_window_pattern", "_sliding_window_pattern"]);
        let pattern = config.int(key, 1..=1 << 16)?.unwrap_or(6);
        let slides = match decoder::sliding_types(config, decoder.num_layers)? {
            Some(slides) => slides,
            None => decoder::pattern_slides(pattern, decoder.num_layers),
        };
        Ok(Self {
            decoder,
            rope_local_base_freq: local,
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
            query_pre_attn_scalar: gemma2::query_pre_attn_scalar(config)?,
            attn_logit_softcapping: gemma2::softcap(config, "attn_logit_softcapping", None)?,
            final_logit_softcapping: gemma2::softcap(config, "final_logit_softcapping", None)?,
            window: config.required_int("sliding_window", 1..=1 << 31)?,
            pattern,
            slides,
        })
    }
}

/// The rotary parameters of global layers, and the base of sliding ones: per layer type (transformers 5),
/// or `rope_theta`, `rope_scaling` and `rope_local_base_freq`.
fn ropes(config: &Object<'_>) -> Result<(Rope, f64), ConvertError> {
    let supported = [RopeKind::Linear];
    let positions = decoder::max_positions(config)?;
    let local = config.required_float("rope_local_base_freq", 1.0..=1e12)?;
    let types = config.child("rope_parameters")?.filter(|types| !types.object_keys().is_empty());
    let Some(types) = types else { return Ok((rope::parse(config, &supported, positions)?, local)) };
    let entry = |key: &str| types.child(key)?.ok_or_else(|| types.invalid(key, "is missing"));
    let (full, sliding) = (entry("full_attention")?, entry("sliding_attention")?);
    for entry in [&full, &sliding] {
        refuse_partial(entry)?;
    }
    let theta = config.required_float("rope_theta", 1.0..=1e12)?;
    let global = rope::parse_layer_type(&full, &supported, positions, theta)?;
    Ok((global, rope::parse_layer_type(&sliding, &[], positions, local)?.theta))
}

/// Refuses an entry that rotates a part of each head.
pub(crate) fn refuse_partial(entry: &Object<'_>) -> Result<(), ConvertError> {
    match entry.float("partial_rotary_factor", 0.0..=1.0)? {
        Some(part) if part != 1.0 => {
            Err(entry.unsupported("partial_rotary_factor", part, "these layers rotate whole heads"))
        }
        _ => Ok(()),
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let config = Gemma3Config::read(config)?;
    let mut arch = gemma::arch(&config.decoder, "gemma3");
    arch.query_pre_attn_scalar = Some(config.query_pre_attn_scalar);
    arch.attn_logit_softcapping = config.attn_logit_softcapping;
    arch.final_logit_softcapping = config.final_logit_softcapping;
    arch.rope_local_base_freq = Some(config.rope_local_base_freq);
    decoder::set_local(&mut arch, config.window, config.pattern, config.slides);
    let bias = config.attention_bias;
    let parts = Parts { qkv_bias: bias, o_bias: bias, qk_norm: true, norms: Norms::Sandwich, ..Parts::default() };
    Ok(Layout { arch, tensors: config.decoder.tensors(&parts) })
}

/// Names of the text-only and of both multimodal layouts.
fn rename(name: &str, arch: &ModelArch) -> Mapping {
    decoder::rename(&decoder::text_model_name(name), arch)
}
