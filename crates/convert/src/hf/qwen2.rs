//! Qwen2 and Qwen2.5: biases on q, k and v; a window from layer `max_window_layers` on, if
//! `use_sliding_window`.

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "qwen2",
    model_types: &["qwen2"],
    architectures: &["Qwen2ForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct Qwen2Config {
    decoder: DecoderConfig,
    /// Window in tokens.
    window: Option<usize>,
    /// Which layers use the window.
    slides: Vec<bool>,
}

impl Qwen2Config {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let defaults = Defaults { head_dim: None, rope: &[RopeKind::Linear, RopeKind::Yarn] };
        let decoder = DecoderConfig::read(config, &defaults)?;
        let (window, slides) = decoder::qwen_sliding(config, decoder.num_layers)?;
        Ok(Self { decoder, window, slides })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let Qwen2Config { decoder, window, slides } = Qwen2Config::read(config)?;
    let mut arch = decoder.arch("qwen2");
    decoder::set_sliding(&mut arch, window, slides);
    let parts = Parts { qkv_bias: true, ..Parts::default() };
    Ok(Layout { arch, tensors: decoder.tensors(&parts) })
}
