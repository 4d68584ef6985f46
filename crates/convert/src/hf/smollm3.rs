//! SmolLM3: as Llama, but some layers do not rotate queries and keys.

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "smollm3",
    model_types: &["smollm3"],
    architectures: &["SmolLM3ForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct SmolLm3Config {
    decoder: DecoderConfig,
    /// Biases on q, k, v and o.
    attention_bias: bool,
    /// Biases on gate, up and down.
    mlp_bias: bool,
    /// `no_rope_layers`, where 1 means that the layer does rotate; else all rotate but every
    /// `no_rope_layer_interval`-th.
    rotates: Vec<bool>,
    /// Window in tokens.
    window: Option<usize>,
    /// Which layers use the window: `layer_types`, else those that do not rotate.
    slides: Vec<bool>,
}

impl SmolLm3Config {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let class = serde_json::json!({"num_key_value_heads": 4, "rope_theta": 2e6, "tie_word_embeddings": true});
        let config = &config.with_defaults(&class);
        let defaults = Defaults { head_dim: None, rope: &[RopeKind::Linear, RopeKind::Llama3, RopeKind::Yarn] };
        let decoder = DecoderConfig::read(config, &defaults)?;
        let rotates = rotating_layers(config, decoder.num_layers)?;
        let window = match config.boolean("use_sliding_window")? {
            Some(true) => config.int("sliding_window", 1..=1 << 31)?,
            _ => None,
        };
        let slides = match decoder::sliding_types(config, decoder.num_layers)? {
            Some(slides) => slides,
            None => rotates.iter().map(|rotates| !rotates).collect(),
        };
        Ok(Self {
            decoder,
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
            mlp_bias: config.boolean("mlp_bias")?.unwrap_or(false),
            rotates,
            window,
            slides,
        })
    }
}

fn rotating_layers(config: &Object<'_>, num_layers: usize) -> Result<Vec<bool>, ConvertError> {
    match config.ints("no_rope_layers", 0..=1)? {
        Some(layers) if layers.len() < num_layers => {
            let reason = format!("has {} entries for {num_layers} layers", layers.len());
            Err(config.invalid("no_rope_layers", reason))
        }
        Some(layers) => Ok(layers.into_iter().take(num_layers).map(|rotates| rotates == 1).collect()),
        None => {
            let interval = config.int("no_rope_layer_interval", 1..=1 << 20)?.unwrap_or(4);
            Ok((1..=num_layers).map(|number| !number.is_multiple_of(interval)).collect())
        }
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let SmolLm3Config { decoder, attention_bias, mlp_bias, rotates, window, slides } = SmolLm3Config::read(config)?;
    let mut arch = decoder.arch("smollm3");
    decoder::set_sliding(&mut arch, window, slides);
    if rotates.contains(&false) {
        arch.rope_layers = Some(rotates);
    }
    let parts = Parts { qkv_bias: attention_bias, o_bias: attention_bias, mlp_bias, ..Parts::default() };
    Ok(Layout { arch, tensors: decoder.tensors(&parts) })
}
