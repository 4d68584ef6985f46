//! Mixtral: Mistral's attention, experts in every layer. The selected experts' weights always sum to 1.

use cortiq_cmf::{ModelArch, Moe};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Defaults, Parts};
use crate::hf::family::{Family, Layout, Mapping};
use crate::hf::moe::{self, MoeParts};
use crate::hf::rope::RopeKind;

pub(crate) const FAMILY: Family =
    Family { name: "mixtral", model_types: &["mixtral"], architectures: &["MixtralForCausalLM"], read, rename };

/// `config.json` of the family.
struct MixtralConfig {
    decoder: DecoderConfig,
    /// The experts; their FFN width is `intermediate_size`.
    moe: Moe,
    /// Window of all layers, in tokens.
    sliding_window: Option<usize>,
}

impl MixtralConfig {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let class = serde_json::json!({"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6});
        let config = &config.with_defaults(&class);
        let defaults = Defaults { head_dim: None, rope: &[RopeKind::Linear, RopeKind::Yarn] };
        let decoder = DecoderConfig::read(config, &defaults)?;
        let num_experts = moe::num_experts(config, config.alias(["num_local_experts", "num_experts"]), 8)?;
        let moe = Moe {
            num_experts,
            top_k: moe::top_k(config, num_experts, 2)?,
            moe_intermediate_size: decoder.intermediate_size,
            norm_topk_prob: true,
            ..Moe::default()
        };
        Ok(Self { decoder, moe, sliding_window: config.int("sliding_window", 1..=1 << 31)? })
    }
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let MixtralConfig { decoder, moe, sliding_window } = MixtralConfig::read(config)?;
    let mut arch = decoder.arch("mixtral");
    decoder::set_sliding(&mut arch, sliding_window, vec![true; decoder.num_layers]);
    let tensors = decoder.tensors_by_layer(|list, prefix, _| {
        decoder.layer_tensors(list, prefix, &Parts::default(), Some((&moe, MoeParts::default())));
    });
    arch.moe = Some(moe);
    Ok(Layout { arch, tensors })
}

/// `block_sparse_moe.gate` is the router; w1, w3 and w2 of an expert are gate, up and down.
fn rename(name: &str, arch: &ModelArch) -> Mapping {
    let mapping = decoder::rename(name, arch);
    let Mapping::Keep(name) = &mapping else { return mapping };
    let Some((layer, stem)) = name.split_once(".block_sparse_moe.") else { return mapping };
    let projections = [(".w1.weight", "gate_proj"), (".w3.weight", "up_proj"), (".w2.weight", "down_proj")];
    let expert = projections
        .into_iter()
        .find_map(|(suffix, projection)| Some(format!("{}.{projection}.weight", stem.strip_suffix(suffix)?)));
    Mapping::Keep(format!("{layer}.mlp.{}", expert.as_deref().unwrap_or(stem)))
}
