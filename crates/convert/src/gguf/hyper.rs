//! The `{arch}.*` keys of a decoder: sizes, epsilon, RoPE; and the keys that are refused.

use super::GgufError;
use super::metadata::{Metadata, Value, required};

/// Sizes and constants of a decoder.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Hyper {
    pub(super) layers: usize,
    pub(super) hidden: usize,
    pub(super) ffn: usize,
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) head_dim: usize,
    /// Dimensions of a head that RoPE turns; even.
    pub(super) rotary_dim: usize,
    pub(super) eps: f64,
    pub(super) rope_theta: f64,
    pub(super) context: usize,
    pub(super) sliding_window: Option<usize>,
}

/// Keys whose value must be one of the neutral ones: nothing here computes what they ask for.
const NEUTRAL: [(&str, &[f64]); 15] = [
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.scale", &[0.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.temperature_length", &[0.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
];

/// Boolean keys and the value that is refused.
const REFUSED_FLAGS: [(&str, bool); 2] = [("attention.causal", false), ("use_parallel_residual", true)];

impl Hyper {
    /// Reads the keys of `arch`; `tensor_count` bounds the number of layers, `windowed` says that
    /// the architecture may have a sliding window.
    ///
    /// # Errors
    /// [`GgufError`] naming the key.
    pub(super) fn read(
        metadata: &Metadata,
        arch: &str,
        tensor_count: usize,
        windowed: bool,
    ) -> Result<Self, GgufError> {
        refuse_unsupported(metadata, arch)?;
        let keys = Keys { metadata, arch };
        let layers = keys.size("block_count")?;
        if layers > tensor_count {
            let reason = format!("{layers} layers in a file of {tensor_count} tensors");
            return Err(GgufError::bad_key(keys.key("block_count"), reason));
        }
        let hidden = keys.size("embedding_length")?;
        let heads = keys.uniform("attention.head_count", layers)?;
        let heads = required(&keys.key("attention.head_count"), heads)?;
        let kv_heads = keys.uniform("attention.head_count_kv", layers)?.unwrap_or(heads);
        if !heads.is_multiple_of(kv_heads) {
            let reason = format!("{heads} heads cannot share {kv_heads}");
            return Err(GgufError::bad_key(keys.key("attention.head_count_kv"), reason));
        }
        let head_dim = keys.head_dim(hidden, heads)?;
        let ffn = keys.uniform("feed_forward_length", layers)?;
        Ok(Self {
            layers,
            hidden,
            ffn: required(&keys.key("feed_forward_length"), ffn)?,
            heads,
            kv_heads,
            head_dim,
            rotary_dim: keys.rotary_dim(head_dim)?,
            eps: keys.positive("attention.layer_norm_rms_epsilon", None)?,
            rope_theta: keys.positive("rope.freq_base", Some(10_000.0))?,
            context: keys.size("context_length")?,
            sliding_window: keys.sliding_window(windowed)?,
        })
    }

    /// `rotary_dim / head_dim`, such that the product with `head_dim`, rounded down, gives
    /// `rotary_dim` again.
    pub(super) fn partial_rotary_factor(&self) -> f32 {
        let factor = self.rotary_dim as f32 / self.head_dim as f32;
        if (self.head_dim as f32 * factor) as usize == self.rotary_dim { factor } else { factor.next_up() }
    }
}

fn refuse_unsupported(metadata: &Metadata, arch: &str) -> Result<(), GgufError> {
    for (name, neutral) in NEUTRAL {
        let key = format!("{arch}.{name}");
        if let Some(value) = metadata.number(&key)?
            && !neutral.contains(&value)
        {
            let detail = if name.starts_with("expert") { "mixture of experts" } else { "" };
            return Err(GgufError::unsupported_key(key, value, detail));
        }
    }
    for (name, refused) in REFUSED_FLAGS {
        let key = format!("{arch}.{name}");
        if metadata.bool(&key)? == Some(refused) {
            return Err(GgufError::unsupported_key(key, refused, ""));
        }
    }
    Ok(())
}

/// The keys of one architecture.
struct Keys<'a> {
    metadata: &'a Metadata,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// A positive integer.
    fn size(&self, name: &str) -> Result<usize, GgufError> {
        let key = self.key(name);
        let value = required(&key, self.metadata.unsigned(&key)?)?;
        positive_size(key, value)
    }

    fn optional_size(&self, name: &str) -> Result<Option<usize>, GgufError> {
        let key = self.key(name);
        self.metadata.unsigned(&key)?.map(|value| positive_size(key, value)).transpose()
    }

    /// A positive integer, or an array that has the same one for each layer.
    fn uniform(&self, name: &str, layers: usize) -> Result<Option<usize>, GgufError> {
        let key = self.key(name);
        if !matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            return self.optional_size(name);
        }
        let values = self.metadata.integers(&key)?.unwrap_or_default();
        match values.split_first() {
            Some((&first, rest)) if values.len() == layers && rest.iter().all(|&v| v == first) => {
                let first =
                    u64::try_from(first).map_err(|_| GgufError::bad_key(&key, format!("{first} is negative")))?;
                positive_size(key, first).map(Some)
            }
            _ => Err(GgufError::unsupported_key(key, "one value per layer", "layers must be equal")),
        }
    }

    fn positive(&self, name: &str, default: Option<f64>) -> Result<f64, GgufError> {
        let key = self.key(name);
        let value = required(&key, self.metadata.number(&key)?.or(default))?;
        if value > 0.0 { Ok(value) } else { Err(GgufError::bad_key(key, "is not positive")) }
    }

    fn head_dim(&self, hidden: usize, heads: usize) -> Result<usize, GgufError> {
        let head_dim = match self.optional_size("attention.key_length")? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(heads) => hidden / heads,
            None => {
                let reason = format!("{heads} heads do not divide the width {hidden}");
                return Err(GgufError::bad_key(self.key("attention.head_count"), reason));
            }
        };
        match self.optional_size("attention.value_length")? {
            Some(length) if length != head_dim => Err(GgufError::unsupported_key(
                self.key("attention.value_length"),
                length,
                &format!("the key length is {head_dim}"),
            )),
            _ => Ok(head_dim),
        }
    }

    fn rotary_dim(&self, head_dim: usize) -> Result<usize, GgufError> {
        const NAME: &str = "rope.dimension_count";
        let rotary_dim = self.optional_size(NAME)?.unwrap_or(head_dim);
        if rotary_dim > head_dim || !rotary_dim.is_multiple_of(2) {
            let reason = format!("{rotary_dim} is not an even number up to {head_dim}");
            return Err(GgufError::bad_key(self.key(NAME), reason));
        }
        Ok(rotary_dim)
    }

    fn sliding_window(&self, windowed: bool) -> Result<Option<usize>, GgufError> {
        const NAME: &str = "attention.sliding_window";
        let pattern = self.key("attention.sliding_window_pattern");
        if self.metadata.contains(&pattern) {
            return Err(GgufError::unsupported_key(pattern, "a pattern", "all layers must slide"));
        }
        let key = self.key(NAME);
        match self.metadata.unsigned(&key)? {
            None | Some(0) => Ok(None),
            Some(window) if windowed => positive_size(key, window).map(Some),
            Some(window) => {
                Err(GgufError::unsupported_key(key, window, "this architecture does not record which layers slide"))
            }
        }
    }
}

fn positive_size(key: String, value: u64) -> Result<usize, GgufError> {
    match u32::try_from(value) {
        Ok(0) => Err(GgufError::bad_key(key, "is 0")),
        Ok(value) => Ok(value as usize),
        Err(_) => Err(GgufError::bad_key(key, format!("{value} is too large"))),
    }
}
