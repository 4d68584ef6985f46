//! `header.arch`, docs/cmf-format.md §3.2 to §3.6.

use super::RopeScaling;
use serde::{Deserialize, Serialize};

/// What mixes the tokens of a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LayerType {
    /// Softmax attention.
    FullAttention,
    /// A linear recurrence, see [`LinearCore`].
    LinearAttention,
    /// A short gated convolution.
    ShortConv,
}

/// How a norm's weight enters: `x * w` (qwen) or `x * (1 + w)` (gemma).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NormStyle {
    /// The weight as it is.
    #[default]
    Qwen,
    /// One plus the weight.
    Gemma,
}

/// Multi-token prediction head, §3.4.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mtp {
    /// Number of prediction layers.
    pub num_layers: usize,
    /// The head uses the model's `lm_head`.
    #[serde(default = "yes")]
    pub share_lm_head: bool,
    /// The head uses the model's embedding.
    #[serde(default = "yes")]
    pub share_embed: bool,
}

/// Mixture of experts, §3.5.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Moe {
    /// Routed experts per layer.
    pub num_experts: usize,
    /// Experts selected per token.
    pub top_k: usize,
    /// FFN width of one expert.
    pub moe_intermediate_size: usize,
    /// The selected weights are scaled to sum to 1.
    #[serde(default)]
    pub norm_topk_prob: bool,
    /// FFN width of the shared expert; informational, the tensors decide.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shared_expert_intermediate_size: Option<usize>,
    /// The router uses a sigmoid with a selection bias instead of a softmax.
    #[serde(default, skip_serializing_if = "is_false")]
    pub router_sigmoid: bool,
    /// Factor on the routed sum; `None` is 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub routed_scaling_factor: Option<f32>,
    /// Addition: experts come in this many groups; needs the extension `router_groups`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_group: Option<usize>,
    /// Addition: only experts of the best so many groups may be selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub topk_group: Option<usize>,
    /// Addition: added to the sum that `norm_topk_prob` divides by. `None` is 0, or 1e-6 with `router_sigmoid`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm_topk_eps: Option<f64>,
}

/// Addition: multi-head latent attention, needs the extension `mla`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mla {
    /// Rank of the compressed queries; `None` when queries are projected directly.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub q_lora_rank: Option<usize>,
    /// Rank of the compressed keys and values.
    pub kv_lora_rank: usize,
    /// Part of a query or key head that is not rotated.
    pub qk_nope_head_dim: usize,
    /// Part of a query or key head that is rotated; keys share it between heads.
    pub qk_rope_head_dim: usize,
    /// Width of a value head.
    pub v_head_dim: usize,
}

/// The recurrence of [`LayerType::LinearAttention`], §3.6.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearCore {
    /// `gated_delta_net` or `vmf_phase`.
    pub kind: String,
    /// Number of heads.
    pub num_heads: usize,
    /// Phases, `vmf_phase` only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nphase: Option<usize>,
    /// Width of one head's values.
    pub value_head_dim: usize,
}

/// The network: every key of §3.2 under its own name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelArch {
    /// Family name, for people only.
    pub arch_name: String,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// FFN width; nominal, the tensors decide.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key/value heads.
    pub num_kv_heads: usize,
    /// Width of one head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// One entry per layer.
    pub layer_types: Vec<LayerType>,
    /// Epsilon of all norms.
    pub rms_norm_eps: f64,
    /// How norm weights enter.
    #[serde(default)]
    pub norm_style: NormStyle,
    /// Base of the rotary frequencies.
    #[serde(default = "rope_theta")]
    pub rope_theta: f64,
    /// The head is the embedding.
    #[serde(default)]
    pub tie_word_embeddings: bool,
    /// Part of each head that is rotated.
    #[serde(default = "one")]
    pub partial_rotary_factor: f32,
    /// `silu` or `gelu_tanh`.
    #[serde(default = "silu", skip_serializing_if = "is_silu")]
    pub hidden_act: String,
    /// Factor on the embedding rows.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub embed_multiplier: f32,
    /// Attention scale is `1 / sqrt(this)` instead of `1 / sqrt(head_dim)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub query_pre_attn_scalar: Option<f64>,
    /// Window of the sliding layers, in tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window: Option<usize>,
    /// Every how many layers one is global.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_window_pattern: Option<usize>,
    /// Rotary base of the sliding layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_local_base_freq: Option<f64>,
    /// Head width of the global layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_head_dim: Option<usize>,
    /// Key/value heads of the global layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub num_global_kv_heads: Option<usize>,
    /// Rotated part of the global layers' heads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub global_partial_rotary_factor: Option<f32>,
    /// Cap of the logits: `cap * tanh(x / cap)`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub final_logit_softcapping: Option<f64>,
    /// Values are normalised too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub attn_v_norm: bool,
    /// Multi-token prediction.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtp: Option<Mtp>,
    /// Mixture of experts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moe: Option<Moe>,
    /// The recurrence of linear layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_core: Option<LinearCore>,
    /// Longest context the model was made for.
    pub max_position_embeddings: usize,
    /// Taps of the convolution in linear layers.
    pub linear_conv_kernel_dim: Option<usize>,
    /// Key heads of linear layers.
    pub linear_num_key_heads: Option<usize>,
    /// Value heads of linear layers.
    pub linear_num_value_heads: Option<usize>,
    /// Width of a key head in linear layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_key_head_dim: Option<usize>,
    /// Width of a value head in linear layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linear_value_head_dim: Option<usize>,
    /// Addition: change of the rotary frequencies; needs the extension `rope_scaling`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_scaling: Option<RopeScaling>,
    /// Addition: which layers use `sliding_window`, one entry per layer; needs the
    /// extension `sliding_layers`. `None` leaves it to `sliding_window_pattern`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sliding_layers: Option<Vec<bool>>,
    /// Addition: cap of the attention scores, `cap * tanh(x / cap)`; needs the extension `attn_softcap`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attn_logit_softcapping: Option<f64>,
    /// Addition: which layers rotate queries and keys, one entry per layer; needs the extension
    /// `rope_layers`. `None` is all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rope_layers: Option<Vec<bool>>,
    /// Addition: neighbouring dimensions are rotated together instead of those half a head apart; needs
    /// the extension `rope_interleaved`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub rope_interleaved: bool,
    /// Addition: attention layers are multi-head latent attention; needs the extension `mla`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mla: Option<Mla>,
}

impl Default for ModelArch {
    /// The format's defaults for optional keys; all required sizes are 0 (and refused by
    /// [`super::Header::check`] until they are filled in).
    fn default() -> Self {
        Self {
            arch_name: String::new(),
            hidden_size: 0,
            intermediate_size: 0,
            num_layers: 0,
            num_attention_heads: 0,
            num_kv_heads: 0,
            head_dim: 0,
            vocab_size: 0,
            layer_types: Vec::new(),
            rms_norm_eps: 0.0,
            norm_style: NormStyle::Qwen,
            rope_theta: rope_theta(),
            tie_word_embeddings: false,
            partial_rotary_factor: 1.0,
            hidden_act: silu(),
            embed_multiplier: 1.0,
            query_pre_attn_scalar: None,
            sliding_window: None,
            sliding_window_pattern: None,
            rope_local_base_freq: None,
            global_head_dim: None,
            num_global_kv_heads: None,
            global_partial_rotary_factor: None,
            final_logit_softcapping: None,
            attn_v_norm: false,
            mtp: None,
            moe: None,
            linear_core: None,
            max_position_embeddings: 0,
            linear_conv_kernel_dim: None,
            linear_num_key_heads: None,
            linear_num_value_heads: None,
            linear_key_head_dim: None,
            linear_value_head_dim: None,
            rope_scaling: None,
            sliding_layers: None,
            attn_logit_softcapping: None,
            rope_layers: None,
            rope_interleaved: false,
            mla: None,
        }
    }
}

fn yes() -> bool {
    true
}
fn one() -> f32 {
    1.0
}
fn rope_theta() -> f64 {
    10_000.0
}
fn silu() -> String {
    "silu".into()
}
fn is_silu(act: &str) -> bool {
    act == "silu"
}
// serde hands skip conditions a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_one(x: &f32) -> bool {
    *x == 1.0
}
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(x: &bool) -> bool {
    !*x
}
