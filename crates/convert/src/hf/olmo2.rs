//! OLMo 2: norms on the outputs of attention and FFN instead of their inputs, and norms on q and k over all heads.

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Norms, Parts};
use crate::hf::family::{Family, Layout};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family = Family {
    name: "olmo2",
    model_types: &["olmo2"],
    architectures: &["Olmo2ForCausalLM"],
    read,
    rename: decoder::rename,
};

/// `config.json` of the family.
struct Olmo2Config {
    decoder: DecoderConfig,
    /// Biases on q, k, v and o.
    attention_bias: bool,
}

impl Olmo2Config {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let class = serde_json::json!({"rms_norm_eps": 1e-5});
        let config = &config.with_defaults(&class);
        if let Some(clip) = config.float("clip_qkv", 0.0..=1e9)? {
            return Err(config.unsupported("clip_qkv", clip, "queries, keys and values are not clipped"));
        }
        let defaults = Defaults { head_dim: None, rope: &[RopeKind::Linear, RopeKind::Llama3, RopeKind::Yarn] };
        Ok(Self {
            decoder: DecoderConfig::read(config, &defaults)?,
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
        })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let Olmo2Config { decoder, attention_bias } = Olmo2Config::read(config)?;
    let parts = Parts {
        qkv_bias: attention_bias,
        o_bias: attention_bias,
        wide_qk_norm: true,
        norms: Norms::Post,
        ..Parts::default()
    };
    Ok(Layout { arch: decoder.arch("olmo2"), tensors: decoder.tensors(&parts) })
}
