//! The plain pre-norm decoder that several families share: grouped-query attention, a gated FFN,
//! two norms per layer. A family file says what it adds.

use std::ops::RangeInclusive;

use cortiq_cmf::{LayerType, ModelArch, Moe};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::family::{Expected, Mapping, common_mapping};
use crate::hf::moe::{self, MoeParts};
use crate::hf::rope::{self, Rope, RopeKind};

/// What differs between families when a key is absent.
pub(crate) struct Defaults {
    /// `head_dim`; `None` is `hidden_size / num_attention_heads`.
    pub(crate) head_dim: Option<usize>,
    /// Kinds of rotary scaling that the family knows.
    pub(crate) rope: &'static [RopeKind],
}

/// The keys that every such decoder has.
#[derive(Debug, Clone)]
pub(crate) struct DecoderConfig {
    pub(crate) hidden_size: usize,
    pub(crate) intermediate_size: usize,
    pub(crate) num_layers: usize,
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
    pub(crate) vocab_size: usize,
    pub(crate) max_positions: usize,
    pub(crate) rms_norm_eps: f64,
    pub(crate) hidden_act: &'static str,
    pub(crate) tie_word_embeddings: bool,
    pub(crate) rope: Rope,
}

/// Heads of the attention.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heads {
    pub(crate) num_heads: usize,
    pub(crate) num_kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Heads {
    /// Reads and checks the keys; `head_dim` is the width where the key is absent, and `None` is
    /// `hidden_size / num_attention_heads`.
    pub(crate) fn read(config: &Object<'_>, head_dim: Option<usize>) -> Result<Self, ConvertError> {
        let hidden_size = config.required_int("hidden_size", HIDDEN)?;
        let num_heads = config.required_int("num_attention_heads", 1..=1 << 14)?;
        let num_kv_heads = config.int("num_key_value_heads", 1..=num_heads)?.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(num_kv_heads) {
            let reason = format!("is {num_kv_heads}, which does not divide num_attention_heads = {num_heads}");
            return Err(config.invalid("num_key_value_heads", reason));
        }
        let head_dim = match config.int("head_dim", 2..=1 << 14)?.or(head_dim) {
            Some(head_dim) => head_dim,
            None if hidden_size.is_multiple_of(num_heads) => hidden_size / num_heads,
            None => {
                let reason = format!("is absent and hidden_size = {hidden_size} is not a multiple of {num_heads}");
                return Err(config.invalid("head_dim", reason));
            }
        };
        if !head_dim.is_multiple_of(2) {
            return Err(config.invalid("head_dim", format!("is {head_dim}, rotary embedding needs an even one")));
        }
        Ok(Self { num_heads, num_kv_heads, head_dim })
    }
}

const HIDDEN: RangeInclusive<usize> = 1..=1 << 20;
/// Range of FFN widths.
pub(crate) const INTERMEDIATE: RangeInclusive<usize> = 1..=1 << 22;

/// `max_position_embeddings`.
pub(crate) fn max_positions(config: &Object<'_>) -> Result<usize, ConvertError> {
    config.required_int("max_position_embeddings", 1..=1 << 31)
}

impl DecoderConfig {
    /// Reads and checks the keys.
    pub(crate) fn read(config: &Object<'_>, defaults: &Defaults) -> Result<Self, ConvertError> {
        let heads = Heads::read(config, defaults.head_dim)?;
        let intermediate_size = config.required_int("intermediate_size", INTERMEDIATE)?;
        let rope = rope::parse(config, defaults.rope, max_positions(config)?)?;
        Self::read_with(config, heads, intermediate_size, rope)
    }

    /// As [`DecoderConfig::read`], for families that have their own keys for heads, FFN width or rotation.
    pub(crate) fn read_with(
        config: &Object<'_>,
        heads: Heads,
        intermediate_size: usize,
        rope: Rope,
    ) -> Result<Self, ConvertError> {
        let Heads { num_heads, num_kv_heads, head_dim } = heads;
        Ok(Self {
            hidden_size: config.required_int("hidden_size", HIDDEN)?,
            intermediate_size,
            num_layers: config.required_int("num_hidden_layers", 1..=1 << 12)?,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: config.required_int("vocab_size", 1..=1 << 26)?,
            max_positions: max_positions(config)?,
            rms_norm_eps: config.float("rms_norm_eps", 0.0..=0.1)?.unwrap_or(1e-6),
            hidden_act: activation(config)?,
            tie_word_embeddings: config.boolean("tie_word_embeddings")?.unwrap_or(false),
            rope,
        })
    }

    /// The header's arch: all layers full attention, no window.
    pub(crate) fn arch(&self, arch_name: &str) -> ModelArch {
        ModelArch {
            arch_name: arch_name.to_owned(),
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_layers: self.num_layers,
            num_attention_heads: self.num_heads,
            num_kv_heads: self.num_kv_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab_size,
            layer_types: vec![LayerType::FullAttention; self.num_layers],
            rms_norm_eps: self.rms_norm_eps,
            rope_theta: self.rope.theta,
            tie_word_embeddings: self.tie_word_embeddings,
            hidden_act: self.hidden_act.to_owned(),
            max_position_embeddings: self.max_positions,
            rope_scaling: self.rope.scaling.clone(),
            ..ModelArch::default()
        }
    }

    /// All tensors, in execution order; all layers are alike.
    pub(crate) fn tensors(&self, parts: &Parts) -> Vec<Expected> {
        self.tensors_by_layer(|list, prefix, _| self.layer_tensors(list, prefix, parts, None))
    }

    /// All tensors, in execution order; `layer` adds those of one layer, given `model.layers.{i}.` and i.
    pub(crate) fn tensors_by_layer(&self, mut layer: impl FnMut(&mut Tensors, &str, usize)) -> Vec<Expected> {
        let hidden = self.hidden_size as u64;
        let vocab = self.vocab_size as u64;
        let mut list = Tensors(Vec::new());
        list.add("model.embed_tokens.weight", &[vocab, hidden]);
        for index in 0..self.num_layers {
            layer(&mut list, &format!("model.layers.{index}."), index);
        }
        list.add("model.norm.weight", &[hidden]);
        if !self.tie_word_embeddings {
            list.add("lm_head.weight", &[vocab, hidden]);
        }
        list.0
    }

    /// The tensors of one layer, whose FFN is `experts` or dense.
    pub(crate) fn layer_tensors(
        &self,
        list: &mut Tensors,
        prefix: &str,
        parts: &Parts,
        experts: Option<(&Moe, MoeParts)>,
    ) {
        let hidden = self.hidden_size as u64;
        if parts.norms != Norms::Post {
            list.add(format!("{prefix}input_layernorm.weight"), &[hidden]);
        }
        self.attention_tensors(list, prefix, parts);
        list.add(format!("{prefix}post_attention_layernorm.weight"), &[hidden]);
        if parts.norms == Norms::Sandwich {
            list.add(format!("{prefix}pre_feedforward_layernorm.weight"), &[hidden]);
        }
        match experts {
            Some((moe, parts)) => moe::tensors(list, &format!("{prefix}mlp"), hidden, moe, parts),
            None => self.ffn_tensors(list, prefix, parts),
        }
        if parts.norms != Norms::Pre {
            list.add(format!("{prefix}post_feedforward_layernorm.weight"), &[hidden]);
        }
        if parts.layer_scalar {
            list.add(format!("{prefix}layer_scalar"), &[1]);
        }
    }

    fn attention_tensors(&self, list: &mut Tensors, prefix: &str, parts: &Parts) {
        let hidden = self.hidden_size as u64;
        let (heads, head_dim) = (self.num_heads as u64, self.head_dim as u64);
        let (q, kv) = (heads * head_dim, self.num_kv_heads as u64 * head_dim);
        let q_and_gate = if parts.gated { 2 * q } else { q };
        for (name, out) in [("q", q_and_gate), ("k", kv), ("v", kv)] {
            list.linear(format!("{prefix}self_attn.{name}_proj"), out, hidden, parts.qkv_bias);
        }
        list.linear(format!("{prefix}self_attn.o_proj"), hidden, q, parts.o_bias);
        let norms = match (parts.qk_norm, parts.wide_qk_norm) {
            (_, true) => Some((q, kv)),
            (true, false) => Some((head_dim, head_dim)),
            (false, false) => None,
        };
        if let Some((q, k)) = norms {
            list.add(format!("{prefix}self_attn.q_norm.weight"), &[q]);
            list.add(format!("{prefix}self_attn.k_norm.weight"), &[k]);
        }
    }

    fn ffn_tensors(&self, list: &mut Tensors, prefix: &str, parts: &Parts) {
        let (hidden, ffn) = (self.hidden_size as u64, self.intermediate_size as u64);
        list.linear(format!("{prefix}mlp.gate_proj"), ffn, hidden, parts.mlp_bias);
        list.linear(format!("{prefix}mlp.up_proj"), ffn, hidden, parts.mlp_bias);
        list.linear(format!("{prefix}mlp.down_proj"), hidden, ffn, parts.mlp_bias);
    }
}

/// Which optional tensors a family has.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Parts {
    /// Biases on q, k and v.
    pub(crate) qkv_bias: bool,
    /// Bias on the attention output.
    pub(crate) o_bias: bool,
    /// Biases on gate, up and down.
    pub(crate) mlp_bias: bool,
    /// q_proj also gives a gate: per head `[query | gate]`.
    pub(crate) gated: bool,
    /// Norms on the heads of q and k.
    pub(crate) qk_norm: bool,
    /// Norms on q and k over all heads at once.
    pub(crate) wide_qk_norm: bool,
    /// Where a layer has norms.
    pub(crate) norms: Norms,
    /// A factor on the residual stream after the layer.
    pub(crate) layer_scalar: bool,
}

/// Where a layer has norms.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Norms {
    /// On the inputs of attention and FFN.
    #[default]
    Pre,
    /// On inputs and outputs.
    Sandwich,
    /// On the outputs.
    Post,
}

/// A growing list of tensors.
pub(crate) struct Tensors(pub(crate) Vec<Expected>);

impl Tensors {
    pub(crate) fn add(&mut self, name: impl Into<String>, shape: &[u64]) {
        self.0.push(Expected { name: name.into(), shape: shape.to_vec() });
    }

    pub(crate) fn linear(&mut self, stem: String, out: u64, input: u64, bias: bool) {
        self.add(format!("{stem}.weight"), &[out, input]);
        if bias {
            self.add(format!("{stem}.bias"), &[out]);
        }
    }

    /// A gated FFN `stem` of width `ffn`.
    pub(crate) fn mlp(&mut self, stem: &str, hidden: u64, ffn: u64, bias: bool) {
        self.linear(format!("{stem}.gate_proj"), ffn, hidden, bias);
        self.linear(format!("{stem}.up_proj"), ffn, hidden, bias);
        self.linear(format!("{stem}.down_proj"), hidden, ffn, bias);
    }
}

/// `hidden_act`, which Gemma calls `hidden_activation`, in the header's spelling.
fn activation(config: &Object<'_>) -> Result<&'static str, ConvertError> {
    let key = config.alias(["hidden_activation", "hidden_act"]);
    match config.string(key)? {
        None | Some("silu") => Ok("silu"),
        Some("gelu_pytorch_tanh" | "gelu_tanh") => Ok("gelu_tanh"),
        Some(other) => Err(config.unsupported(key, other, "silu and gelu_pytorch_tanh are")),
    }
}

/// Sets the window of the layers for which `slides` holds. All layers: the header's window alone
/// says so. Some: `sliding_layers` lists them. None: no window.
pub(crate) fn set_sliding(arch: &mut ModelArch, window: Option<usize>, slides: Vec<bool>) {
    let Some(window) = window else { return };
    if slides.iter().any(|&s| s) {
        arch.sliding_window = Some(window);
        if !slides.iter().all(|&s| s) {
            arch.sliding_layers = Some(slides);
        }
    }
}

/// Which layers of a Qwen2 or Qwen3 model slide, and their window. `layer_types` (transformers 5)
/// wins; else the layers from `max_window_layers` on do, if `use_sliding_window`.
pub(crate) fn qwen_sliding(config: &Object<'_>, num_layers: usize) -> Result<(Option<usize>, Vec<bool>), ConvertError> {
    let window = qwen_window(config)?;
    let slides = match sliding_types(config, num_layers)? {
        Some(slides) => slides,
        None => {
            let first = config.int("max_window_layers", 0..=1 << 20)?.unwrap_or(28);
            (0..num_layers).map(|layer| window.is_some() && layer >= first).collect()
        }
    };
    Ok((window, slides))
}

/// The window of a model whose configuration has `use_sliding_window`.
pub(crate) fn qwen_window(config: &Object<'_>) -> Result<Option<usize>, ConvertError> {
    if !config.boolean("use_sliding_window")?.unwrap_or(false) {
        // Some configurations then have a window of 0.
        return Ok(None);
    }
    match config.int("sliding_window", 1..=1 << 31)? {
        // The families' default is 4096; an explicit null switches the window off.
        None if !config.has_key("sliding_window") => Ok(Some(4096)),
        window => Ok(window),
    }
}

/// `layer_types` as which layers slide, if it is there.
pub(crate) fn sliding_types(config: &Object<'_>, num_layers: usize) -> Result<Option<Vec<bool>>, ConvertError> {
    let Some(types) = config.strings("layer_types")? else { return Ok(None) };
    if types.len() != num_layers {
        let reason = format!("has {} entries for {num_layers} layers", types.len());
        return Err(config.invalid("layer_types", reason));
    }
    let slides = types.iter().map(|name| match *name {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => Err(config.unsupported("layer_types", other, "full_attention and sliding_attention are")),
    });
    slides.collect::<Result<Vec<_>, _>>().map(Some)
}

/// `layer_types` by the names of `kinds`, if it is there.
pub(crate) fn named_layer_types(
    config: &Object<'_>,
    num_layers: usize,
    kinds: &[(&str, LayerType)],
) -> Result<Option<Vec<LayerType>>, ConvertError> {
    let Some(types) = config.strings("layer_types")? else { return Ok(None) };
    if types.len() != num_layers {
        let reason = format!("has {} entries for {num_layers} layers", types.len());
        return Err(config.invalid("layer_types", reason));
    }
    let unknown = |name: &str| {
        let known: Vec<&str> = kinds.iter().map(|(known, _)| *known).collect();
        config.unsupported("layer_types", name, &format!("{} are", known.join(" and ")))
    };
    let kind = |name: &&str| kinds.iter().find(|(known, _)| known == name).map(|(_, kind)| *kind);
    types.iter().map(|name| kind(name).ok_or_else(|| unknown(name))).collect::<Result<Vec<_>, _>>().map(Some)
}

/// Which layers slide when every `pattern`-th is global, docs/cmf-format.md §3.2.
pub(crate) fn pattern_slides(pattern: usize, num_layers: usize) -> Vec<bool> {
    (1..=num_layers).map(|number| !number.is_multiple_of(pattern)).collect()
}

/// Sets the window of a model with local and global layers: `pattern` if it or the place of the first
/// global layer says which is which, else the list.
pub(crate) fn set_local(arch: &mut ModelArch, window: usize, pattern: usize, slides: Vec<bool>) {
    arch.sliding_window = Some(window);
    let first_global = slides.iter().position(|&slides| !slides).map(|layer| layer + 1);
    arch.sliding_window_pattern =
        [Some(pattern), first_global].into_iter().flatten().find(|&p| pattern_slides(p, slides.len()) == slides);
    if arch.sliding_window_pattern.is_none() {
        arch.sliding_layers = Some(slides);
    }
}

/// Whether layer `index` slides, after [`set_local`].
pub(crate) fn is_local(arch: &ModelArch, index: usize) -> bool {
    match (&arch.sliding_layers, arch.sliding_window_pattern) {
        (Some(slides), _) => slides.get(index) == Some(&true),
        (None, Some(pattern)) => !(index + 1).is_multiple_of(pattern),
        (None, None) => arch.sliding_window.is_some(),
    }
}

/// The name that a tensor of a multimodal checkpoint has in the text model alone.
pub(crate) fn text_model_name(name: &str) -> String {
    for prefix in ["language_model.model.", "model.language_model."] {
        if let Some(rest) = name.strip_prefix(prefix) {
            return format!("model.{rest}");
        }
    }
    name.strip_prefix("language_model.").unwrap_or(name).to_owned()
}

/// The names of these families are the canonical ones; checkpoints saved from the bare model lack
/// the `model.` in front.
pub(crate) fn rename(name: &str, _arch: &ModelArch) -> Mapping {
    if let Some(mapping) = common_mapping(name) {
        return mapping;
    }
    let bare = ["embed_tokens.", "layers.", "norm."].iter().any(|prefix| name.starts_with(prefix));
    Mapping::Keep(if bare { format!("model.{name}") } else { name.to_owned() })
}
