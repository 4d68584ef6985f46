//! LFM2: short gated convolutions among attention layers, under names of its own.

use cortiq_cmf::{LayerType, ModelArch, Moe};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Heads, INTERMEDIATE, Parts, Tensors};
use crate::hf::family::{Expected, Family, Layout, Mapping};
use crate::hf::moe::{self, MoeParts};
use crate::hf::rope::{self, RopeKind};

pub(crate) const FAMILY: Family =
    Family { name: "lfm2", model_types: &["lfm2"], architectures: &["Lfm2ForCausalLM"], read, rename };

/// The keys that LFM2 and LFM2-MoE share.
pub(crate) struct Lfm2Config {
    decoder: DecoderConfig,
    /// `layer_types`, or what `full_attn_idxs` says.
    layer_types: Vec<LayerType>,
    /// `conv_L_cache`: taps of the convolution.
    taps: usize,
}

impl Lfm2Config {
    /// Reads and checks the keys; `intermediate_size` is the width of a dense FFN.
    pub(crate) fn read(config: &Object<'_>, intermediate_size: usize) -> Result<Self, ConvertError> {
        let heads = Heads::read(config, None)?;
        let mut rope = rope::parse(config, &[RopeKind::Linear, RopeKind::Yarn], decoder::max_positions(config)?)?;
        let parameters = config.child("rope_parameters")?;
        if !parameters.iter().chain([config]).any(|owner| owner.get("rope_theta").is_some()) {
            rope.theta = config.float("theta", 1.0..=1e12)?.unwrap_or(1e6);
        }
        let mut decoder = DecoderConfig::read_with(config, heads, intermediate_size, rope)?;
        decoder.rms_norm_eps = config.float("norm_eps", 0.0..=0.1)?.unwrap_or(1e-5);
        let tied = config.boolean(config.alias(["tie_embedding", "tie_word_embeddings"]))?;
        decoder.tie_word_embeddings = tied.unwrap_or(true);
        if config.boolean("conv_bias")? == Some(true) {
            return Err(config.unsupported("conv_bias", true, "convolutions without bias are"));
        }
        for key in ["conv_dim", "conv_dim_out", "block_dim"] {
            if let Some(width) = config.int(key, 1..=1 << 20)?
                && width != decoder.hidden_size
            {
                return Err(config.unsupported(key, width, "it must be hidden_size"));
            }
        }
        Ok(Self {
            layer_types: layer_types(config, decoder.num_layers)?,
            taps: config.int("conv_L_cache", 2..=64)?.unwrap_or(3),
            decoder,
        })
    }

    /// Number of layers.
    pub(crate) fn num_layers(&self) -> usize {
        self.decoder.num_layers
    }

    /// The header's arch without experts.
    pub(crate) fn arch(&self, arch_name: &str) -> ModelArch {
        let mut arch = self.decoder.arch(arch_name);
        arch.layer_types.clone_from(&self.layer_types);
        arch.linear_conv_kernel_dim = Some(self.taps);
        arch
    }

    /// All tensors; `experts(i)` are those of layer `i`, `None` for a dense FFN.
    pub(crate) fn tensors<'a>(&self, experts: impl Fn(usize) -> Option<(&'a Moe, MoeParts)>) -> Vec<Expected> {
        self.decoder.tensors_by_layer(|list, prefix, layer| {
            if self.layer_types.get(layer) == Some(&LayerType::ShortConv) {
                self.conv_layer(list, prefix, experts(layer));
            } else {
                let parts = Parts { qk_norm: true, ..Parts::default() };
                self.decoder.layer_tensors(list, prefix, &parts, experts(layer));
            }
        })
    }

    fn conv_layer(&self, list: &mut Tensors, prefix: &str, experts: Option<(&Moe, MoeParts)>) {
        let hidden = self.decoder.hidden_size as u64;
        list.add(format!("{prefix}input_layernorm.weight"), &[hidden]);
        list.add(format!("{prefix}short_conv.in_proj.weight"), &[3 * hidden, hidden]);
        list.add(format!("{prefix}short_conv.conv.weight"), &[hidden, 1, self.taps as u64]);
        list.add(format!("{prefix}short_conv.out_proj.weight"), &[hidden, hidden]);
        list.add(format!("{prefix}post_attention_layernorm.weight"), &[hidden]);
        match experts {
            Some((moe, parts)) => moe::tensors(list, &format!("{prefix}mlp"), hidden, moe, parts),
            None => list.mlp(&format!("{prefix}mlp"), hidden, self.decoder.intermediate_size as u64, false),
        }
    }
}

/// `layer_types`; without it the layers in `full_attn_idxs` are attention layers, or all are.
fn layer_types(config: &Object<'_>, num_layers: usize) -> Result<Vec<LayerType>, ConvertError> {
    let kinds = [("full_attention", LayerType::FullAttention), ("conv", LayerType::ShortConv)];
    if let Some(types) = decoder::named_layer_types(config, num_layers, &kinds)? {
        return Ok(types);
    }
    let Some(attention) = config.ints("full_attn_idxs", 0..=num_layers - 1)? else {
        return Ok(vec![LayerType::FullAttention; num_layers]);
    };
    let of = |layer| if attention.contains(&layer) { LayerType::FullAttention } else { LayerType::ShortConv };
    Ok((0..num_layers).map(of).collect())
}

/// Width of the FFN. With `block_auto_adjust_ff_dim` it is two thirds of the configured width, times
/// `block_ffn_dim_multiplier`, rounded up to a multiple of `block_multiple_of` (transformers, `Lfm2MLP`).
fn ffn_width(config: &Object<'_>) -> Result<usize, ConvertError> {
    let width = config.int(config.alias(["block_ff_dim", "intermediate_size"]), INTERMEDIATE)?.unwrap_or(12_288);
    if config.boolean("block_auto_adjust_ff_dim")? == Some(false) {
        return Ok(width);
    }
    let multiple = config.int("block_multiple_of", INTERMEDIATE)?.unwrap_or(256);
    let multiplier = config.float("block_ffn_dim_multiplier", 1e-3..=1e3)?;
    if multiplier.is_none() && config.has_key("block_ffn_dim_multiplier") {
        // An explicit null is neither a factor nor rounded.
        return Ok(2 * width / 3);
    }
    let scaled = ((2 * width / 3) as f64 * multiplier.unwrap_or(1.0)).trunc();
    // At most 2^22 * 1000, far from where f64 has gaps.
    let adjusted = (scaled as usize).div_ceil(multiple) * multiple;
    if !INTERMEDIATE.contains(&adjusted) {
        return Err(config.invalid("block_ffn_dim_multiplier", format!("makes the FFN {adjusted} wide")));
    }
    Ok(adjusted)
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let lfm2 = Lfm2Config::read(config, ffn_width(config)?)?;
    Ok(Layout { arch: lfm2.arch("lfm2"), tensors: lfm2.tensors(|_| None) })
}

/// Starts of the names inside a layer, in the checkpoint and here.
const NAMES: [(&str, &str); 7] = [
    ("operator_norm.", "input_layernorm."),
    ("ffn_norm.", "post_attention_layernorm."),
    ("conv.", "short_conv."),
    ("self_attn.out_proj.", "self_attn.o_proj."),
    ("self_attn.q_layernorm.", "self_attn.q_norm."),
    ("self_attn.k_layernorm.", "self_attn.k_norm."),
    ("feed_forward.", "mlp."),
];

/// Matrices of a gated FFN or of an expert.
const FFN: [(&str, &str); 3] =
    [("w1.weight", "gate_proj.weight"), ("w3.weight", "up_proj.weight"), ("w2.weight", "down_proj.weight")];

/// Maps the family's names.
pub(crate) fn rename(name: &str, arch: &ModelArch) -> Mapping {
    let name = match name.strip_prefix("embedding_norm.") {
        Some(rest) => format!("model.embedding_norm.{rest}"),
        None => name.to_owned(),
    };
    match decoder::rename(&name, arch) {
        Mapping::Keep(name) => Mapping::Keep(canonical(&name)),
        other => other,
    }
}

fn canonical(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("model.embedding_norm.") {
        return format!("model.norm.{rest}");
    }
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let Some((layer, stem)) = layer else { return name.to_owned() };
    let Some((theirs, ours)) = NAMES.iter().find(|(theirs, _)| stem.starts_with(theirs)) else {
        return name.to_owned();
    };
    let rest = stem.strip_prefix(theirs).unwrap_or(stem);
    let matrix = if *ours == "mlp." { FFN.iter().find(|(matrix, _)| rest.ends_with(matrix)) } else { None };
    let rest = match matrix {
        Some((theirs, ours)) => format!("{}{ours}", rest.strip_suffix(theirs).unwrap_or(rest)),
        None => rest.to_owned(),
    };
    format!("model.layers.{layer}.{ours}{rest}")
}
