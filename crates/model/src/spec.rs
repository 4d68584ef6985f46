//! What the network is, layer by layer, read from the header and from which tensors exist (never from its name).

use cortiq_cmf::{Header, LayerType, ModelArch, NormStyle, RopeScaling};

use crate::{Activation, ModelError, Weights};

/// An RMS norm: `x / sqrt(mean(x²) + eps) * (offset + w)`; `offset` is 1 in Gemma's style, else 0.
#[derive(Clone, Debug, PartialEq)]
pub struct NormSpec {
    /// Name of the weight tensor.
    pub weight: String,
    /// Added to the mean square.
    pub eps: f64,
    /// Added to the weight.
    pub offset: f32,
}

/// Rotary embedding of an attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Leading dimensions of a head that rotate; even.
    pub dims: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling for long contexts.
    pub scaling: Option<RopeScaling>,
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Prefix of its tensors, `model.layers.3.self_attn`.
    pub prefix: String,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// RMS norms of queries and keys per head, before rotation.
    pub qk_norm: Option<(NormSpec, NormSpec)>,
    /// Rotary embedding.
    pub rope: RopeSpec,
    /// A query at `i` sees keys `j` with `i - window < j <= i`.
    pub window: Option<usize>,
    /// Factor on the scores.
    pub scale: f32,
}

/// The part of a layer that mixes positions.
#[derive(Clone, Debug, PartialEq)]
pub enum MixerSpec {
    /// Full or sliding-window attention.
    Attention(AttentionSpec),
}

/// The part of a layer that works on each position alone.
#[derive(Clone, Debug, PartialEq)]
pub enum FfnSpec {
    /// `down(act(gate x) * up x)`.
    Dense {
        /// Prefix of its tensors, `model.layers.3.mlp`.
        prefix: String,
        /// Rows of gate and up; may differ from layer to layer.
        intermediate_size: usize,
        /// Activation of the gate.
        activation: Activation,
    },
}

/// One decoder layer in pre-norm layout: `x += mixer(norm(x)); x += ffn(norm(x))`.
#[derive(Clone, Debug, PartialEq)]
pub struct LayerSpec {
    /// Norm before the mixer.
    pub mixer_norm: NormSpec,
    /// The mixer.
    pub mixer: MixerSpec,
    /// Norm before the FFN.
    pub ffn_norm: NormSpec,
    /// The FFN.
    pub ffn: FfnSpec,
}

/// A whole decoder.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSpec {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Longest context the model was made for.
    pub max_position_embeddings: usize,
    /// Factor on embedding rows.
    pub embed_multiplier: f32,
    /// The layers, in order.
    pub layers: Vec<LayerSpec>,
    /// Norm before the head.
    pub final_norm: NormSpec,
    /// Tensor that the head multiplies with: `lm_head.weight`, or the embedding when tied.
    pub head: &'static str,
    /// Logits become `c * tanh(logits / c)`.
    pub final_softcap: Option<f32>,
}

/// Name of the embedding tensor.
pub(crate) const EMBEDDING: &str = "model.embed_tokens.weight";
const LM_HEAD: &str = "lm_head.weight";

impl ModelSpec {
    /// Reads the spec of a model. Whatever the engine cannot run is refused here, by name.
    pub fn new(header: &Header, weights: &dyn Weights) -> Result<Self, ModelError> {
        let arch = &header.arch;
        check_numbers(arch)?;
        refuse_unknown_parts(arch, weights)?;
        let norm = |weight: String| norm_spec(arch, weight);
        let layers = (0..arch.num_layers)
            .map(|i| {
                let prefix = format!("model.layers.{i}");
                refuse_unknown_layer_parts(arch, i, &prefix, weights)?;
                Ok(LayerSpec {
                    mixer_norm: norm(format!("{prefix}.input_layernorm.weight")),
                    mixer: MixerSpec::Attention(attention_spec(arch, i, format!("{prefix}.self_attn"), weights)?),
                    ffn_norm: norm(format!("{prefix}.post_attention_layernorm.weight")),
                    ffn: dense_spec(arch, format!("{prefix}.mlp"), weights)?,
                })
            })
            .collect::<Result<_, ModelError>>()?;
        // A missing head means tied embeddings whatever the header says: the public GGUF import forgets the flag.
        let tied = arch.tie_word_embeddings || weights.find(LM_HEAD).is_none();
        Ok(Self {
            hidden_size: arch.hidden_size,
            vocab_size: arch.vocab_size,
            max_position_embeddings: arch.max_position_embeddings,
            embed_multiplier: arch.embed_multiplier,
            layers,
            final_norm: norm("model.norm.weight".to_owned()),
            head: if tied { EMBEDDING } else { LM_HEAD },
            final_softcap: arch.final_logit_softcapping.map(|c| c as f32),
        })
    }
}

fn check_numbers(arch: &ModelArch) -> Result<(), ModelError> {
    let invalid = |field, reason: String| Err(ModelError::Header { field, reason });
    for (field, value) in [
        ("hidden_size", arch.hidden_size),
        ("num_layers", arch.num_layers),
        ("num_attention_heads", arch.num_attention_heads),
        ("num_kv_heads", arch.num_kv_heads),
        ("head_dim", arch.head_dim),
        ("vocab_size", arch.vocab_size),
        ("max_position_embeddings", arch.max_position_embeddings),
    ] {
        if value == 0 {
            return invalid(field, "it is zero".to_owned());
        }
    }
    if !arch.num_attention_heads.is_multiple_of(arch.num_kv_heads) {
        return invalid(
            "num_kv_heads",
            format!("{} heads cannot share {}", arch.num_attention_heads, arch.num_kv_heads),
        );
    }
    if arch.layer_types.len() != arch.num_layers {
        return invalid("layer_types", format!("{} entries for {} layers", arch.layer_types.len(), arch.num_layers));
    }
    if arch.sliding_window == Some(0) {
        return invalid("sliding_window", "it is zero".to_owned());
    }
    if let Some(sliding) = &arch.sliding_layers
        && sliding.len() != arch.num_layers
    {
        return invalid("sliding_layers", format!("{} entries for {} layers", sliding.len(), arch.num_layers));
    }
    Ok(())
}

/// Refuses what the header asks for and no operation of the [`crate::Program`] does yet.
fn refuse_unknown_parts(arch: &ModelArch, weights: &dyn Weights) -> Result<(), ModelError> {
    let refuse = |what: &str| Err(ModelError::Unsupported(what.to_owned()));
    match () {
        () if arch.global_head_dim.is_some() || arch.num_global_kv_heads.is_some() => {
            refuse("layers with a second attention geometry (`global_head_dim`)")
        }
        () if arch.attn_v_norm => refuse("a norm on attention values (`attn_v_norm`)"),
        () if arch.linear_core.is_some() => refuse("a linear attention core (`linear_core`)"),
        () if arch.moe.is_some() => refuse("mixture-of-experts layers (`moe`)"),
        () if arch.rope_local_base_freq.is_some() => refuse("a second rope base (`rope_local_base_freq`)"),
        () if arch.sliding_window_pattern.is_some() => refuse("alternating windows (`sliding_window_pattern`)"),
        () if weights.find(EMBEDDING).is_none() => Err(ModelError::MissingTensor(EMBEDDING.to_owned())),
        () => Ok(()),
    }
}

/// Refuses a layer that has parts beyond pre-norm attention and a dense FFN.
fn refuse_unknown_layer_parts(
    arch: &ModelArch,
    index: usize,
    prefix: &str,
    weights: &dyn Weights,
) -> Result<(), ModelError> {
    let refuse = |what: String| Err(ModelError::Unsupported(format!("layer {index} {what}")));
    match arch.layer_types.get(index) {
        Some(LayerType::FullAttention) => {}
        other => return refuse(format!("is of kind {other:?}")),
    }
    for (tensor, meaning) in [
        ("mlp.gate.weight", "has a router but the header has no `moe`"),
        ("pre_feedforward_layernorm.weight", "has sandwich norms"),
        ("layer_scalar", "has a residual scale"),
        ("self_attn.kv_a_proj_with_mqa.weight", "is multi-head latent attention"),
        ("linear_attn.in_proj_qkv.weight", "is a gated delta net"),
        ("short_conv.in_proj.weight", "is a short convolution"),
    ] {
        if weights.find(&format!("{prefix}.{tensor}")).is_some() {
            return refuse(format!("{meaning} (`{prefix}.{tensor}`)"));
        }
    }
    Ok(())
}

fn norm_spec(arch: &ModelArch, weight: String) -> NormSpec {
    let offset = match arch.norm_style {
        NormStyle::Qwen => 0.0,
        NormStyle::Gemma => 1.0,
    };
    NormSpec { weight, eps: arch.rms_norm_eps, offset }
}

fn attention_spec(
    arch: &ModelArch,
    index: usize,
    prefix: String,
    weights: &dyn Weights,
) -> Result<AttentionSpec, ModelError> {
    let (heads, head_dim) = (arch.num_attention_heads, arch.head_dim);
    let q_name = format!("{prefix}.q_proj.weight");
    let q = weights.find(&q_name).ok_or_else(|| ModelError::MissingTensor(q_name.clone()))?;
    if weights.shape(q)?.first().map(|&rows| rows as usize) == Some(2 * heads * head_dim) {
        return Err(ModelError::Unsupported(format!(
            "layer {index} has gated attention (`{q_name}` is twice as tall)"
        )));
    }
    let q_norm = format!("{prefix}.q_norm.weight");
    let k_norm = format!("{prefix}.k_norm.weight");
    let qk_norm = match (weights.find(&q_norm), weights.find(&k_norm)) {
        (None, None) => None,
        (Some(_), Some(_)) => Some((norm_spec(arch, q_norm), norm_spec(arch, k_norm))),
        (None, _) => return Err(ModelError::MissingTensor(q_norm)),
        (_, None) => return Err(ModelError::MissingTensor(k_norm)),
    };
    let slides = arch.sliding_layers.as_ref().is_none_or(|layers| layers.get(index) == Some(&true));
    let scale_base = arch.query_pre_attn_scalar.unwrap_or(head_dim as f64);
    Ok(AttentionSpec {
        prefix,
        heads,
        kv_heads: arch.num_kv_heads,
        head_dim,
        qk_norm,
        rope: RopeSpec { dims: rotary_dims(arch)?, theta: arch.rope_theta, scaling: arch.rope_scaling.clone() },
        window: arch.sliding_window.filter(|_| slides),
        scale: (1.0 / scale_base.sqrt()) as f32,
    })
}

/// `max(2, floor(head_dim * partial_rotary_factor))`, which must be even and fit the head.
fn rotary_dims(arch: &ModelArch) -> Result<usize, ModelError> {
    let dims = ((arch.head_dim as f32 * arch.partial_rotary_factor) as usize).max(2);
    if !dims.is_multiple_of(2) || dims > arch.head_dim {
        return Err(ModelError::Header {
            field: "partial_rotary_factor",
            reason: format!("{dims} of {} dimensions would rotate", arch.head_dim),
        });
    }
    Ok(dims)
}

fn dense_spec(arch: &ModelArch, prefix: String, weights: &dyn Weights) -> Result<FfnSpec, ModelError> {
    let name = format!("{prefix}.gate_proj.weight");
    let gate = weights.find(&name).ok_or_else(|| ModelError::MissingTensor(name.clone()))?;
    // Defragmented files have fewer neurons in some layers, so the tensor decides.
    let intermediate_size = weights.shape(gate)?.first().map_or(0, |&rows| rows as usize);
    let activation = match arch.hidden_act.as_str() {
        "silu" => Activation::Silu,
        "gelu_tanh" => Activation::GeluTanh,
        other => return Err(ModelError::Unsupported(format!("activation `{other}`"))),
    };
    Ok(FfnSpec::Dense { prefix, intermediate_size, activation })
}
