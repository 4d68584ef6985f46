//! Mistral: as Llama, without biases; all layers slide when `sliding_window` is set.

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "mistral",
    model_types: &["mistral"],
    architectures: &["MistralForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct MistralConfig {
    decoder: DecoderConfig,
    /// Window of all layers, in tokens.
    sliding_window: Option<usize>,
}

impl MistralConfig {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let defaults = Defaults { head_dim: None, rope: &[RopeKind::Linear, RopeKind::Yarn] };
        let sliding_window = match config.int("sliding_window", 1..=1 << 31)? {
            // The family's default is 4096; an explicit null switches the window off.
            None if !config.has_key("sliding_window") => Some(4096),
            window => window,
        };
        Ok(Self { decoder: DecoderConfig::read(config, &defaults)?, sliding_window })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let MistralConfig { decoder, sliding_window } = MistralConfig::read(config)?;
    let mut arch = decoder.arch("mistral");
    decoder::set_sliding(&mut arch, sliding_window, vec![true; decoder.num_layers]);
    Ok(Layout { arch, tensors: decoder.tensors(&Parts::default()) })
}
