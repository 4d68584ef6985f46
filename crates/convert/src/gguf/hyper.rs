//! The sizes and constants that every decoder has; and the keys that are refused.

use super::GgufError;
use super::keys::Keys;
use super::metadata::required;

/// Sizes and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hyper {
    /// Layers of the decoder.
    pub(super) layers: usize,
    /// Blocks of multi-token prediction behind them.
    pub(super) nextn: usize,
    pub(super) hidden: usize,
    /// Width of a dense FFN; architectures whose layers all have experts may have none.
    pub(super) ffn: Option<usize>,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    /// Width of a head of q and k.
    pub(super) head_dim: usize,
    /// Dimensions of a head that RoPE turns; even.
    pub(super) rotary_dim: usize,
    pub(super) eps: f64,
    pub(super) rope_theta: f64,
    pub(super) context: usize,
}

/// Which keys say how many heads there are and how wide they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadKeys {
    /// All layers have the same heads; keys and values are equally wide.
    Uniform,
    /// As `Uniform`, but layers without attention have 0 key/value heads.
    SomeLayers,
    /// Keys and values are expanded from a common vector; the widths have keys of their own.
    Latent,
}

/// Keys whose value must be one of the neutral ones, unless the architecture reads them: nothing
/// here computes what they ask for.
const NEUTRAL: [(&str, &[f64]); 26] = [
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("expert_shared_count", &[0.0]),
    ("expert_group_count", &[0.0, 1.0]),
    ("expert_gating_func", &[0.0, 1.0]),
    ("expert_weights_scale", &[0.0, 1.0]),
    ("leading_dense_block_count", &[0.0]),
    ("interleave_moe_layer_step", &[0.0, 1.0]),
    ("moe_every_n_layers", &[0.0, 1.0]),
    ("nextn_predict_layers", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.q_lora_rank", &[0.0]),
    ("attention.kv_lora_rank", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.temperature_length", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("router_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("rope.scaling.alpha", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
];

/// Boolean keys and the value that is refused.
const REFUSED_FLAGS: [(&str, bool); 3] =
    [("attention.causal", false), ("use_parallel_residual", true), ("swin_norm", true)];

impl Hyper {
    /// Reads the keys; `tensor_count` bounds the number of layers, `reads` lists the keys of [`NEUTRAL`] that the
    /// architecture gives a meaning.
    ///
    /// # Errors
    /// [`GgufError`] naming the key.
    pub(super) fn read(
        keys: &Keys<'_>,
        tensor_count: usize,
        head_keys: HeadKeys,
        reads: &[&str],
    ) -> Result<Self, GgufError> {
        refuse_unsupported(keys, reads)?;
        let blocks = keys.size("block_count")?;
        if blocks > tensor_count {
            let reason = format!("{blocks} layers in a file of {tensor_count} tensors");
            return Err(GgufError::bad_key(keys.key("block_count"), reason));
        }
        let nextn = keys.count("nextn_predict_layers")?;
        if nextn > 1 {
            return Err(GgufError::unsupported_key(keys.key("nextn_predict_layers"), nextn, "one block is"));
        }
        let layers = match blocks.checked_sub(nextn) {
            Some(layers) if layers > 0 => layers,
            _ => return Err(GgufError::bad_key(keys.key("block_count"), "leaves no layer for the decoder")),
        };
        let hidden = keys.size("embedding_length")?;
        let heads = keys.uniform("attention.head_count", blocks, false)?;
        let heads = required(&keys.key("attention.head_count"), heads)?;
        let kv_heads = match head_keys {
            HeadKeys::Latent => heads,
            _ => keys.uniform("attention.head_count_kv", blocks, head_keys == HeadKeys::SomeLayers)?.unwrap_or(heads),
        };
        if !heads.is_multiple_of(kv_heads) {
            let reason = format!("{heads} heads cannot share {kv_heads}");
            return Err(GgufError::bad_key(keys.key("attention.head_count_kv"), reason));
        }
        let head_dim = match head_keys {
            HeadKeys::Latent => match keys.optional_size("attention.key_length_mla")? {
                Some(width) => width,
                None => keys.size("attention.key_length")?,
            },
            _ => head_dim(keys, hidden, heads)?,
        };
        Ok(Self {
            layers,
            nextn,
            hidden,
            ffn: keys.uniform("feed_forward_length", blocks, false)?,
            heads,
            kv_heads,
            head_dim,
            rotary_dim: rotary_dim(keys, head_dim)?,
            eps: keys.positive("attention.layer_norm_rms_epsilon", None)?,
            rope_theta: keys.positive("rope.freq_base", Some(10_000.0))?,
            context: keys.tokens("context_length")?,
        })
    }

    /// `rotary_dim / head_dim`, such that the product with `head_dim`, rounded down, gives
    /// `rotary_dim` again.
    pub(super) fn partial_rotary_factor(&self) -> f32 {
        let factor = self.rotary_dim as f32 / self.head_dim as f32;
        if (self.head_dim as f32 * factor) as usize == self.rotary_dim { factor } else { factor.next_up() }
    }
}

fn refuse_unsupported(keys: &Keys<'_>, reads: &[&str]) -> Result<(), GgufError> {
    for (name, neutral) in NEUTRAL {
        let key = keys.key(name);
        if reads.contains(&name) {
            continue;
        }
        if let Some(value) = keys.metadata.number(&key)?
            && !neutral.contains(&value)
        {
            let detail = if name.starts_with("expert") { "mixture of experts" } else { "" };
            return Err(GgufError::unsupported_key(key, value, detail));
        }
    }
    for (name, refused) in REFUSED_FLAGS {
        let key = keys.key(name);
        if keys.metadata.bool(&key)? == Some(refused) {
            return Err(GgufError::unsupported_key(key, refused, ""));
        }
    }
    Ok(())
}

fn head_dim(keys: &Keys<'_>, hidden: usize, heads: usize) -> Result<usize, GgufError> {
    let head_dim = match keys.optional_size("attention.key_length")? {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let reason = format!("{heads} heads do not divide the width {hidden}");
            return Err(GgufError::bad_key(keys.key("attention.head_count"), reason));
        }
    };
    let value_length = "attention.value_length";
    match keys.optional_size(value_length)? {
        Some(length) if length != head_dim => {
            let detail = format!("the key length is {head_dim}");
            Err(GgufError::unsupported_key(keys.key(value_length), length, &detail))
        }
        _ => Ok(head_dim),
    }
}

fn rotary_dim(keys: &Keys<'_>, head_dim: usize) -> Result<usize, GgufError> {
    const NAME: &str = "rope.dimension_count";
    let rotary_dim = keys.optional_size(NAME)?.unwrap_or(head_dim);
    if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
        let reason = format!("{rotary_dim} is not an even number up to {head_dim}");
        return Err(GgufError::bad_key(keys.key(NAME), reason));
    }
    Ok(rotary_dim)
}
