//! Qwen3: norms on the heads of q and k, an explicit head width, optional attention biases, YaRN.

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "qwen3",
    model_types: &["qwen3"],
    architectures: &["Qwen3ForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct Qwen3Config {
    decoder: DecoderConfig,
    /// Biases on q, k, v and o.
    attention_bias: bool,
    /// Window in tokens.
    window: Option<usize>,
    /// Which layers use the window.
    slides: Vec<bool>,
}

impl Qwen3Config {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let defaults = Defaults { head_dim: Some(128), rope: &[RopeKind::Linear, RopeKind::Yarn] };
        let decoder = DecoderConfig::read(config, &defaults)?;
        let (window, slides) = decoder::qwen_sliding(config, decoder.num_layers)?;
        let attention_bias = config.boolean("attention_bias")?.unwrap_or(false);
        Ok(Self { decoder, attention_bias, window, slides })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let Qwen3Config { decoder, attention_bias, window, slides } = Qwen3Config::read(config)?;
    let mut arch = decoder.arch("qwen3");
    decoder::set_sliding(&mut arch, window, slides);
    let parts = Parts { qkv_bias: attention_bias, o_bias: attention_bias, qk_norm: true, ..Parts::default() };
    Ok(Layout { arch, tensors: decoder.tensors(&parts) })
}
