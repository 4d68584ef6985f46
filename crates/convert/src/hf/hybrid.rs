//! What Qwen3-Next and Qwen3.5 share: gated delta net layers among gated attention layers, norms around
//! one, dense or expert FFNs, multi-token prediction.

use cortiq_cmf::{LayerType, LinearCore, ModelArch, Moe, Mtp, NormStyle};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Heads, Parts, Tensors};
use crate::hf::family::{Layout, Mapping};
use crate::hf::moe::{self, MoeParts};
use crate::hf::rope::{self, RopeKind};

/// The keys that all these families have.
pub(crate) struct HybridConfig {
    decoder: DecoderConfig,
    /// `partial_rotary_factor`.
    partial_rotary_factor: f64,
    /// `layer_types`, or what `full_attention_interval` says.
    layer_types: Vec<LayerType>,
    /// `attention_bias`: biases on q, k, v and o.
    attention_bias: bool,
    delta: DeltaNet,
}

/// The gated delta net.
struct DeltaNet {
    /// `linear_num_key_heads`.
    key_heads: usize,
    /// `linear_num_value_heads`.
    value_heads: usize,
    /// `linear_key_head_dim`.
    key_dim: usize,
    /// `linear_value_head_dim`.
    value_dim: usize,
    /// `linear_conv_kernel_dim`.
    taps: usize,
}

impl HybridConfig {
    /// Reads and checks the keys; `intermediate_size` is the width of a dense FFN.
    pub(crate) fn read(config: &Object<'_>, intermediate_size: usize) -> Result<Self, ConvertError> {
        let heads = Heads::read(config, Some(256))?;
        let supported = [RopeKind::Linear, RopeKind::Yarn];
        let (rope, part) = rope::parse_partial(config, &supported, decoder::max_positions(config)?, 0.25)?;
        // Rotation takes pairs; a fraction of a dimension is cut off.
        let rotated = (heads.head_dim as f64 * part) as usize;
        if rotated < 2 || !rotated.is_multiple_of(2) {
            let reason = format!("is {part}: {rotated} of {} dimensions do not make pairs", heads.head_dim);
            return Err(config.invalid("partial_rotary_factor", reason));
        }
        for (key, supported) in [("attn_output_gate", true), ("mtp_use_dedicated_embeddings", false)] {
            if let Some(value) = config.boolean(key)?
                && value != supported
            {
                return Err(config.unsupported(key, value, "the network of this family has it the other way round"));
            }
        }
        // The number of blocks says nothing about whether the checkpoint has them.
        if let Some(blocks) = config.int("mtp_num_hidden_layers", 0..=1 << 12)?
            && blocks > 1
        {
            return Err(config.unsupported("mtp_num_hidden_layers", blocks, "one block is"));
        }
        let decoder = DecoderConfig::read_with(config, heads, intermediate_size, rope)?;
        Ok(Self {
            layer_types: layer_types(config, decoder.num_layers)?,
            decoder,
            partial_rotary_factor: part,
            attention_bias: config.boolean("attention_bias")?.unwrap_or(false),
            delta: DeltaNet::read(config)?,
        })
    }

    /// Number of layers.
    pub(crate) fn num_layers(&self) -> usize {
        self.decoder.num_layers
    }

    /// Header and tensors. `sparse` says which layers have experts; the MTP block has them where any has.
    pub(crate) fn layout(&self, arch_name: &str, moe: Option<Moe>, sparse: &[bool]) -> Layout {
        let moe = moe.filter(|_| sparse.contains(&true));
        let delta = &self.delta;
        let mut arch = self.decoder.arch(arch_name);
        arch.layer_types.clone_from(&self.layer_types);
        arch.norm_style = NormStyle::Gemma;
        arch.partial_rotary_factor = self.partial_rotary_factor as f32;
        arch.linear_core = Some(LinearCore {
            kind: "gated_delta_net".to_owned(),
            num_heads: delta.value_heads,
            nphase: None,
            value_head_dim: delta.value_dim,
        });
        arch.linear_conv_kernel_dim = Some(delta.taps);
        arch.linear_num_key_heads = Some(delta.key_heads);
        arch.linear_num_value_heads = Some(delta.value_heads);
        arch.linear_key_head_dim = Some(delta.key_dim);
        arch.linear_value_head_dim = Some(delta.value_dim);
        arch.mtp = Some(Mtp { num_layers: 1, share_lm_head: true, share_embed: true });
        let mut tensors = self.decoder.tensors_by_layer(|list, prefix, layer| {
            let kind = self.layer_types.get(layer).copied().unwrap_or(LayerType::FullAttention);
            let moe = moe.as_ref().filter(|_| sparse.get(layer) == Some(&true));
            self.layer(list, prefix, kind, moe);
        });
        tensors.extend(self.mtp(moe.as_ref()).0);
        arch.moe = moe;
        Layout { arch, tensors }
    }

    fn layer(&self, list: &mut Tensors, prefix: &str, kind: LayerType, moe: Option<&Moe>) {
        let experts = moe.map(|moe| (moe, MoeParts { expert_bias: false, shared_gate: true }));
        if kind == LayerType::FullAttention {
            let bias = self.attention_bias;
            let parts = Parts { qkv_bias: bias, o_bias: bias, gated: true, qk_norm: true, ..Parts::default() };
            self.decoder.layer_tensors(list, prefix, &parts, experts);
            return;
        }
        let hidden = self.decoder.hidden_size as u64;
        list.add(format!("{prefix}input_layernorm.weight"), &[hidden]);
        self.delta.tensors(list, &format!("{prefix}linear_attn."), hidden);
        list.add(format!("{prefix}post_attention_layernorm.weight"), &[hidden]);
        match experts {
            Some((moe, parts)) => moe::tensors(list, &format!("{prefix}mlp"), hidden, moe, parts),
            None => list.mlp(&format!("{prefix}mlp"), hidden, self.decoder.intermediate_size as u64, false),
        }
    }

    /// The block of multi-token prediction: an attention layer behind a projection of two normed inputs.
    fn mtp(&self, moe: Option<&Moe>) -> Tensors {
        let hidden = self.decoder.hidden_size as u64;
        let mut list = Tensors(Vec::new());
        list.add("model.mtp.enorm.weight", &[hidden]);
        list.add("model.mtp.hnorm.weight", &[hidden]);
        list.add("model.mtp.eh_proj.weight", &[hidden, 2 * hidden]);
        self.layer(&mut list, "model.mtp.layers.0.", LayerType::FullAttention, moe);
        list.add("model.mtp.norm.weight", &[hidden]);
        list
    }
}

impl DeltaNet {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let heads = 1..=1 << 14;
        let key_heads = config.int("linear_num_key_heads", heads.clone())?.unwrap_or(16);
        let value_heads = config.int("linear_num_value_heads", heads.clone())?.unwrap_or(32);
        if !value_heads.is_multiple_of(key_heads) {
            let reason = format!("is {value_heads}, which is not a multiple of linear_num_key_heads = {key_heads}");
            return Err(config.invalid("linear_num_value_heads", reason));
        }
        Ok(Self {
            key_heads,
            value_heads,
            key_dim: config.int("linear_key_head_dim", heads.clone())?.unwrap_or(128),
            value_dim: config.int("linear_value_head_dim", heads)?.unwrap_or(128),
            taps: config.int("linear_conv_kernel_dim", 2..=64)?.unwrap_or(4),
        })
    }

    fn tensors(&self, list: &mut Tensors, prefix: &str, hidden: u64) {
        let [key_heads, value_heads, key_dim, value_dim, taps] =
            [self.key_heads, self.value_heads, self.key_dim, self.value_dim, self.taps].map(|n| n as u64);
        let values = value_heads * value_dim;
        let channels = 2 * key_heads * key_dim + values;
        list.add(format!("{prefix}in_proj_qkv.weight"), &[channels, hidden]);
        list.add(format!("{prefix}in_proj_z.weight"), &[values, hidden]);
        list.add(format!("{prefix}in_proj_b.weight"), &[value_heads, hidden]);
        list.add(format!("{prefix}in_proj_a.weight"), &[value_heads, hidden]);
        list.add(format!("{prefix}conv1d.weight"), &[channels, 1, taps]);
        list.add(format!("{prefix}A_log"), &[value_heads]);
        list.add(format!("{prefix}dt_bias"), &[value_heads]);
        list.add(format!("{prefix}norm.weight"), &[value_dim]);
        list.add(format!("{prefix}out_proj.weight"), &[hidden, values]);
    }
}

/// `layer_types`; without it every `full_attention_interval`-th layer (by default 4th) is an attention layer.
fn layer_types(config: &Object<'_>, num_layers: usize) -> Result<Vec<LayerType>, ConvertError> {
    let kinds = [("full_attention", LayerType::FullAttention), ("linear_attention", LayerType::LinearAttention)];
    if let Some(types) = decoder::named_layer_types(config, num_layers, &kinds)? {
        return Ok(types);
    }
    let interval = config.int("full_attention_interval", 1..=1 << 12)?.unwrap_or(4);
    let of = |layer: usize| match (layer + 1).is_multiple_of(interval) {
        true => LayerType::FullAttention,
        false => LayerType::LinearAttention,
    };
    Ok((0..num_layers).map(of).collect())
}

/// Names of the MTP tensors outside its layer, in the checkpoint and here.
const MTP: [(&str, &str); 4] = [
    ("fc.weight", "eh_proj.weight"),
    ("pre_fc_norm_embedding.weight", "enorm.weight"),
    ("pre_fc_norm_hidden.weight", "hnorm.weight"),
    ("norm.weight", "norm.weight"),
];

/// Text-only and multimodal names, MTP, fused experts.
pub(crate) fn rename(name: &str, arch: &ModelArch) -> Mapping {
    match decoder::rename(&canonical(name), arch) {
        Mapping::Keep(name) => moe::split_fused(&name, arch).unwrap_or(Mapping::Keep(name)),
        other => other,
    }
}

/// The name of a tensor of a multimodal checkpoint or of MTP in a text-only one.
pub(crate) fn canonical(name: &str) -> String {
    if let Some(rest) = name.strip_prefix("mtp.") {
        let found = MTP.iter().find(|(theirs, _)| *theirs == rest);
        format!("model.mtp.{}", found.map_or(rest, |(_, ours)| ours))
    } else if let Some(rest) = name.strip_prefix("model.language_model.") {
        format!("model.{rest}")
    } else {
        name.to_owned()
    }
}
