//! Gemma 4, dense models, and the text part of their multimodal checkpoints: plain norms, values normed
//! without a weight, scores not scaled, a factor after each layer. Global layers have wider heads, fewer of
//! them for keys and values, rotate a part of each head, and may use their keys as values.

use cortiq_cmf::ModelArch;
use serde_json::{Value, json};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Heads, INTERMEDIATE, Norms, Parts};
use crate::hf::family::{Family, Layout, Mapping};
use crate::hf::rope::{self, Rope};
use crate::hf::{gemma, gemma2, gemma3};

pub(crate) const FAMILY: Family = Family {
    name: "gemma4",
    model_types: &["gemma4", "gemma4_text"],
    architectures: &["Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"],
    read,
    rename,
};

/// `config.json` of the family.
struct Gemma4Config {
    /// With the geometry of the sliding layers and the rotary base of the global ones.
    decoder: DecoderConfig,
    /// Rotary base of the sliding layers.
    rope_local_base_freq: f64,
    /// Part of the global layers' heads that is rotated.
    global_partial_rotary_factor: f64,
    /// Head width of the global layers.
    global_head_dim: usize,
    /// Key/value heads of the global layers, where they use their keys as values (`attention_k_eq_v`).
    /// Otherwise they have as many as the others and the configuration's number does not count.
    num_global_kv_heads: Option<usize>,
    /// Biases on q, k, v and o.
    attention_bias: bool,
    /// Cap of the logits.
    final_logit_softcapping: Option<f64>,
    /// Window in tokens.
    window: usize,
    /// `layer_types`, else five of six; the last layer is always global.
    slides: Vec<bool>,
}

fn class_defaults() -> Value {
    json!({
        "vocab_size": 262_144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 30,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": true, "sliding_window": 512,
        "global_head_dim": 512,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    })
}

/// Refuses the parts of the family that the header cannot express.
fn refuse_unsupported(config: &Object<'_>) -> Result<(), ConvertError> {
    if config.boolean("enable_moe_block")? == Some(true) {
        return Err(config.unsupported("enable_moe_block", true, "experts beside a dense FFN"));
    }
    // The class's default is 256; 0 and null are none.
    let per_layer = match config.int("hidden_size_per_layer_input", 0..=1 << 20)? {
        None if !config.has_key("hidden_size_per_layer_input") => 256,
        width => width.unwrap_or(0),
    };
    for (key, value, detail) in [
        ("hidden_size_per_layer_input", per_layer, "embeddings per layer (E2B, E4B)"),
        (
            "num_kv_shared_layers",
            config.int("num_kv_shared_layers", 0..=1 << 16)?.unwrap_or(0),
            "shared keys and values",
        ),
    ] {
        if value != 0 {
            return Err(config.unsupported(key, value, detail));
        }
    }
    // Images are seen from both sides in the multimodal models (`vision`); text is not.
    match config.string("use_bidirectional_attention")? {
        None | Some("vision") => Ok(()),
        Some(other) => Err(config.unsupported("use_bidirectional_attention", other, "attention is causal")),
    }
}

impl Gemma4Config {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        refuse_unsupported(config)?;
        let class = class_defaults();
        let config = &config.with_defaults(&class);
        let heads = Heads::read(config, None)?;
        let intermediate_size = config.required_int("intermediate_size", INTERMEDIATE)?;
        let (global, global_partial_rotary_factor, local) = ropes(config)?;
        let decoder = DecoderConfig::read_with(config, heads, intermediate_size, global)?;
        let mut slides = match decoder::sliding_types(config, decoder.num_layers)? {
            Some(slides) => slides,
            None => decoder::pattern_slides(PATTERN, decoder.num_layers),
        };
        if let Some(last) = slides.last_mut() {
            *last = false;
        }
        let k_eq_v = config.boolean("attention_k_eq_v")? == Some(true);
        let global = if config.has_key(LAYERS) {
            listed_geometry(config, &decoder, &slides, k_eq_v)?
        } else {
            named_geometry(config, &decoder, k_eq_v)?
        };
        Ok(Self {
            rope_local_base_freq: local,
            global_partial_rotary_factor,
            global_head_dim: global.head_dim,
            num_global_kv_heads: k_eq_v.then_some(global.kv_heads),
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
            final_logit_softcapping: gemma2::softcap(config, "final_logit_softcapping", None)?,
            window: config.required_int("sliding_window", 1..=1 << 31)?,
            slides,
            decoder,
        })
    }
}

/// Every how many layers one is global, unless `layer_types` says otherwise.
const PATTERN: usize = 6;

/// Overrides per layer, as transformers 5.24 and later write what differs between the types of layers.
const LAYERS: &str = "per_layer_config";

/// Attention of one layer.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Geometry {
    head_dim: usize,
    kv_heads: usize,
}

impl Geometry {
    /// From the keys `head_dim` and `kv_heads` of `owner`; `base` has what is absent.
    fn read(owner: &Object<'_>, keys: [&str; 2], base: Self, num_heads: usize) -> Result<Self, ConvertError> {
        let [head_key, kv_key] = keys;
        let head_dim = owner.int(head_key, 2..=1 << 14)?.unwrap_or(base.head_dim);
        if !head_dim.is_multiple_of(2) {
            return Err(owner.invalid(head_key, format!("is {head_dim}, rotary embedding needs an even one")));
        }
        let kv_heads = owner.int(kv_key, 1..=num_heads)?.unwrap_or(base.kv_heads);
        if !num_heads.is_multiple_of(kv_heads) {
            let reason = format!("is {kv_heads}, which does not divide num_attention_heads = {num_heads}");
            return Err(owner.invalid(kv_key, reason));
        }
        Ok(Self { head_dim, kv_heads })
    }

    fn of(decoder: &DecoderConfig) -> Self {
        Self { head_dim: decoder.head_dim, kv_heads: decoder.num_kv_heads }
    }
}

/// Geometry of the global layers from `global_head_dim` and `num_global_key_value_heads`; the latter counts only
/// with `k_eq_v`.
fn named_geometry(config: &Object<'_>, decoder: &DecoderConfig, k_eq_v: bool) -> Result<Geometry, ConvertError> {
    let keys = ["global_head_dim", "num_global_key_value_heads"];
    let base = Geometry::of(decoder);
    let named = Geometry::read(config, keys, base, decoder.num_heads)?;
    Ok(if k_eq_v { named } else { Geometry { kv_heads: base.kv_heads, ..named } })
}

/// Geometry of the global layers from `per_layer_config`, beside which the other keys do not count. The header has
/// one geometry for each type of layers.
fn listed_geometry(
    config: &Object<'_>,
    decoder: &DecoderConfig,
    slides: &[bool],
    k_eq_v: bool,
) -> Result<Geometry, ConvertError> {
    let keys = ["head_dim", "num_key_value_heads"];
    let base = Geometry::of(decoder);
    let mut layers = vec![base; slides.len()];
    if let Some(list) = config.child(LAYERS)? {
        for (key, overrides) in config.get(LAYERS).and_then(Value::as_object).into_iter().flatten() {
            let layer = key.parse().ok().and_then(|index: usize| layers.get_mut(index));
            let layer = layer.ok_or_else(|| list.invalid(key, "is not the index of a layer"))?;
            let Some(entry) = list.child(key)? else { continue };
            let other = overrides.as_object().into_iter().flatten().find(|(key, _)| !keys.contains(&key.as_str()));
            if let Some((key, value)) = other {
                return Err(entry.unsupported(key, value, "layers may differ in head_dim and num_key_value_heads"));
            }
            *layer = Geometry::read(&entry, keys, base, decoder.num_heads)?;
        }
    }
    // The last layer is always global.
    let global = layers.last().copied().unwrap_or(base);
    for (index, (layer, &slides)) in layers.iter().zip(slides).enumerate() {
        if *layer != (if slides { base } else { global }) {
            return Err(config.unsupported(LAYERS, index, "layers of one type must be alike"));
        }
    }
    if !k_eq_v && global.kv_heads != base.kv_heads {
        let detail = "only layers with attention_k_eq_v have another number of key/value heads";
        return Err(config.unsupported(LAYERS, format!("num_key_value_heads {}", global.kv_heads), detail));
    }
    Ok(global)
}

/// The rotary parameters of global layers, the part of their heads that is rotated, and the base of sliding
/// layers. In the type `proportional` pairs span the whole head and only the first ones turn.
fn ropes(config: &Object<'_>) -> Result<(Rope, f64, f64), ConvertError> {
    let positions = decoder::max_positions(config)?;
    let types = config.child("rope_parameters")?.ok_or_else(|| config.invalid("rope_parameters", "is missing"))?;
    let entry = |key: &str| types.child(key)?.ok_or_else(|| types.invalid(key, "is missing"));
    let (full, sliding) = (entry("full_attention")?, entry("sliding_attention")?);
    gemma3::refuse_partial(&sliding)?;
    let local = rope::parse_layer_type(&sliding, &[], positions, 1e4)?.theta;
    if full.string("rope_type")? != Some("proportional") {
        gemma3::refuse_partial(&full)?;
        return Ok((rope::parse_layer_type(&full, &[], positions, 1e6)?, 1.0, local));
    }
    if let Some(factor) = full.float("factor", 1.0..=65_536.0)?
        && factor != 1.0
    {
        return Err(full.unsupported("factor", factor, "proportional rotation is not scaled"));
    }
    let theta = full.float("rope_theta", 1.0..=1e12)?.unwrap_or(1e6);
    let part = full.float("partial_rotary_factor", 0.0..=1.0)?.unwrap_or(1.0);
    Ok((Rope { theta, scaling: None }, part, local))
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let config = Gemma4Config::read(config)?;
    let decoder = &config.decoder;
    let global = DecoderConfig {
        head_dim: config.global_head_dim,
        num_kv_heads: config.num_global_kv_heads.unwrap_or(decoder.num_kv_heads),
        ..decoder.clone()
    };
    let parts = Parts {
        qkv_bias: config.attention_bias,
        o_bias: config.attention_bias,
        qk_norm: true,
        norms: Norms::Sandwich,
        layer_scalar: true,
        ..Parts::default()
    };
    let tensors = decoder.tensors_by_layer(|list, prefix, layer| {
        let geometry = if config.slides.get(layer) == Some(&true) { decoder } else { &global };
        geometry.layer_tensors(list, prefix, &parts, None);
    });
    let mut arch = ModelArch {
        embed_multiplier: gemma::embed_multiplier(decoder),
        query_pre_attn_scalar: Some(1.0),
        rope_local_base_freq: Some(config.rope_local_base_freq),
        global_head_dim: Some(config.global_head_dim),
        num_global_kv_heads: config.num_global_kv_heads,
        global_partial_rotary_factor: Some(config.global_partial_rotary_factor as f32),
        final_logit_softcapping: config.final_logit_softcapping,
        attn_v_norm: true,
        ..decoder.arch("gemma4")
    };
    decoder::set_local(&mut arch, config.window, PATTERN, config.slides);
    Ok(Layout { arch, tensors })
}

/// Where global layers have a number of key/value heads of their own, their values are their keys before
/// norm and rotation: the projection is stored under both names.
fn rename(name: &str, arch: &ModelArch) -> Mapping {
    let mapping = decoder::rename(&decoder::text_model_name(name), arch);
    let Mapping::Keep(name) = &mapping else { return mapping };
    let Some((layer, suffix)) = name.split_once(".self_attn.k_proj.") else { return mapping };
    let index = layer.strip_prefix("model.layers.").and_then(|index| index.parse().ok());
    if arch.num_global_kv_heads.is_none() || index.is_none_or(|index| decoder::is_local(arch, index)) {
        return mapping;
    }
    Mapping::Copies(vec![name.clone(), format!("{layer}.self_attn.v_proj.{suffix}")])
}
