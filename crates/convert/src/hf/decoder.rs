//! The plain pre-norm decoder that several families share: grouped-query attention, a gated FFN,
//! two norms per layer. A family file says what it adds.

use cortiq_cmf::{LayerType, ModelArch};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::family::{Expected, Mapping, common_mapping};
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

impl DecoderConfig {
    /// Reads and checks the keys.
    pub(crate) fn read(config: &Object<'_>, defaults: &Defaults) -> Result<Self, ConvertError> {
        let hidden_size = config.required_int("hidden_size", 1..=1 << 20)?;
        let num_heads = config.required_int("num_attention_heads", 1..=1 << 14)?;
        let num_kv_heads = config.int("num_key_value_heads", 1..=num_heads)?.unwrap_or(num_heads);
        if !num_heads.is_multiple_of(num_kv_heads) {
            let reason = format!("is {num_kv_heads}, which does not divide num_attention_heads = {num_heads}");
            return Err(config.invalid("num_key_value_heads", reason));
        }
        let head_dim = match config.int("head_dim", 2..=1 << 14)?.or(defaults.head_dim) {
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
        let max_positions = config.required_int("max_position_embeddings", 1..=1 << 31)?;
        Ok(Self {
            hidden_size,
            intermediate_size: config.required_int("intermediate_size", 1..=1 << 22)?,
            num_layers: config.required_int("num_hidden_layers", 1..=1 << 12)?,
            num_heads,
            num_kv_heads,
            head_dim,
            vocab_size: config.required_int("vocab_size", 1..=1 << 26)?,
            max_positions,
            rms_norm_eps: config.float("rms_norm_eps", 0.0..=0.1)?.unwrap_or(1e-6),
            hidden_act: activation(config)?,
            tie_word_embeddings: config.boolean("tie_word_embeddings")?.unwrap_or(false),
            rope: rope::parse(config, defaults.rope, max_positions)?,
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

    /// All tensors, in execution order.
    pub(crate) fn tensors(&self, parts: &Parts) -> Vec<Expected> {
        let hidden = self.hidden_size as u64;
        let vocab = self.vocab_size as u64;
        let mut list = Tensors(Vec::new());
        list.add("model.embed_tokens.weight", &[vocab, hidden]);
        for layer in 0..self.num_layers {
            self.layer_tensors(&mut list, &format!("model.layers.{layer}."), parts);
        }
        list.add("model.norm.weight", &[hidden]);
        if !self.tie_word_embeddings {
            list.add("lm_head.weight", &[vocab, hidden]);
        }
        list.0
    }

    fn layer_tensors(&self, list: &mut Tensors, prefix: &str, parts: &Parts) {
        let (hidden, ffn) = (self.hidden_size as u64, self.intermediate_size as u64);
        let (heads, head_dim) = (self.num_heads as u64, self.head_dim as u64);
        let (q, kv) = (heads * head_dim, self.num_kv_heads as u64 * head_dim);
        list.add(format!("{prefix}input_layernorm.weight"), &[hidden]);
        for (name, out, bias) in [("q", q, parts.qkv_bias), ("k", kv, parts.qkv_bias), ("v", kv, parts.qkv_bias)] {
            list.linear(format!("{prefix}self_attn.{name}_proj"), out, hidden, bias);
        }
        list.linear(format!("{prefix}self_attn.o_proj"), hidden, q, parts.o_bias);
        if parts.qk_norm {
            list.add(format!("{prefix}self_attn.q_norm.weight"), &[head_dim]);
            list.add(format!("{prefix}self_attn.k_norm.weight"), &[head_dim]);
        }
        list.add(format!("{prefix}post_attention_layernorm.weight"), &[hidden]);
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
    /// Norms on the heads of q and k.
    pub(crate) qk_norm: bool,
}

struct Tensors(Vec<Expected>);

impl Tensors {
    fn add(&mut self, name: impl Into<String>, shape: &[u64]) {
        self.0.push(Expected { name: name.into(), shape: shape.to_vec() });
    }

    fn linear(&mut self, stem: String, out: u64, input: u64, bias: bool) {
        self.add(format!("{stem}.weight"), &[out, input]);
        if bias {
            self.add(format!("{stem}.bias"), &[out]);
        }
    }
}

/// `hidden_act` in the header's spelling.
fn activation(config: &Object<'_>) -> Result<&'static str, ConvertError> {
    match config.string("hidden_act")? {
        None | Some("silu") => Ok("silu"),
        Some("gelu_pytorch_tanh" | "gelu_tanh") => Ok("gelu_tanh"),
        Some(other) => Err(config.unsupported("hidden_act", other, "silu and gelu_pytorch_tanh are")),
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
    let use_window = config.boolean("use_sliding_window")?.unwrap_or(false);
    let window = match config.int("sliding_window", 1..=1 << 31)? {
        _ if !use_window => None,
        // The family's default is 4096; an explicit null switches the window off.
        None if !config.has_key("sliding_window") => Some(4096),
        window => window,
    };
    let slides = match config.strings("layer_types")? {
        Some(types) => {
            if types.len() != num_layers {
                let reason = format!("has {} entries for {num_layers} layers", types.len());
                return Err(config.invalid("layer_types", reason));
            }
            let slides = types.iter().map(|name| match *name {
                "full_attention" => Ok(false),
                "sliding_attention" => Ok(true),
                other => Err(config.unsupported("layer_types", other, "full_attention and sliding_attention are")),
            });
            slides.collect::<Result<Vec<_>, _>>()?
        }
        None => {
            let first = config.int("max_window_layers", 0..=1 << 20)?.unwrap_or(28);
            (0..num_layers).map(|layer| window.is_some() && layer >= first).collect()
        }
    };
    Ok((window, slides))
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
