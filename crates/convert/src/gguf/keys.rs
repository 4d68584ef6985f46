//! The `{arch}.*` keys of a file.

use super::GgufError;
use super::metadata::{Metadata, Value, required};

/// Largest size that is accepted, so that products of a few sizes fit 64 bits.
const MAX_SIZE: u64 = 1 << 26;
/// Largest number of tokens that is accepted.
const MAX_TOKENS: u64 = 1 << 32;

/// The keys of one architecture.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys<'a> {
    pub(super) metadata: &'a Metadata,
    /// Value of `general.architecture`.
    pub(super) arch: &'static str,
}

impl Keys<'_> {
    /// The full name of a key.
    pub(super) fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.arch)
    }

    /// A positive integer.
    pub(super) fn size(&self, name: &str) -> Result<usize, GgufError> {
        required(&self.key(name), self.optional_size(name)?)
    }

    /// A positive integer, if the key is there.
    pub(super) fn optional_size(&self, name: &str) -> Result<Option<usize>, GgufError> {
        let key = self.key(name);
        self.metadata.unsigned(&key)?.map(|value| positive_size(&key, value, MAX_SIZE)).transpose()
    }

    /// An integer that may be 0, which it also is when the key is absent.
    pub(super) fn count(&self, name: &str) -> Result<usize, GgufError> {
        let key = self.key(name);
        match self.metadata.unsigned(&key)? {
            None | Some(0) => Ok(0),
            Some(value) => positive_size(&key, value, MAX_SIZE),
        }
    }

    /// A positive number of tokens.
    pub(super) fn tokens(&self, name: &str) -> Result<usize, GgufError> {
        let key = self.key(name);
        positive_size(&key, required(&key, self.metadata.unsigned(&key)?)?, MAX_TOKENS)
    }

    /// A positive integer, or an array that has the same one for each of `blocks` blocks; 0 counts as
    /// no value in an array if `gaps`.
    pub(super) fn uniform(&self, name: &str, blocks: usize, gaps: bool) -> Result<Option<usize>, GgufError> {
        let key = self.key(name);
        if !matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            return self.optional_size(name);
        }
        let mut values = self.metadata.integers(&key)?.unwrap_or_default();
        let complete = values.len() == blocks;
        if gaps {
            values.retain(|&value| value != 0);
        }
        match values.split_first() {
            Some((&first, rest)) if complete && rest.iter().all(|&v| v == first) => {
                let first =
                    u64::try_from(first).map_err(|_| GgufError::bad_key(&key, format!("{first} is negative")))?;
                positive_size(&key, first, MAX_SIZE).map(Some)
            }
            _ => Err(GgufError::unsupported_key(key, "one value per layer", "layers must be equal")),
        }
    }

    /// A positive number.
    pub(super) fn positive(&self, name: &str, default: Option<f64>) -> Result<f64, GgufError> {
        let key = self.key(name);
        let value = required(&key, self.metadata.number(&key)?.or(default))?;
        if value > 0.0 { Ok(value) } else { Err(GgufError::bad_key(key, "is not positive")) }
    }

    /// A positive number, if the key is there and not 0.
    pub(super) fn cap(&self, name: &str) -> Result<Option<f64>, GgufError> {
        match self.metadata.number(&self.key(name))? {
            None | Some(0.0) => Ok(None),
            Some(_) => self.positive(name, None).map(Some),
        }
    }

    /// `attention.sliding_window` in tokens; 0 is none.
    pub(super) fn window(&self) -> Result<Option<usize>, GgufError> {
        let key = self.key(WINDOW);
        match self.metadata.unsigned(&key)? {
            None | Some(0) => Ok(None),
            Some(window) => positive_size(&key, window, MAX_TOKENS).map(Some),
        }
    }

    /// Which of `layers` layers slide, by `attention.sliding_window_pattern`: a list, or the period of the global
    /// layers, which is `default` when the key is absent.
    pub(super) fn sliding_layers(&self, layers: usize, default: usize) -> Result<Vec<bool>, GgufError> {
        let key = self.key(PATTERN);
        if matches!(self.metadata.get(&key), Some(Value::Array(_))) {
            let slides = self.metadata.bools(&key)?.unwrap_or_default();
            return match slides.len() == layers {
                true => Ok(slides),
                false => Err(GgufError::bad_key(key, format!("has {} entries for {layers} layers", slides.len()))),
            };
        }
        let period = self.optional_size(PATTERN)?.unwrap_or(default);
        Ok((1..=layers).map(|number| !number.is_multiple_of(period)).collect())
    }

    /// Refuses a window: the architecture does not record which layers have it.
    pub(super) fn refuse_window(&self) -> Result<(), GgufError> {
        self.refuse_pattern()?;
        match self.window()? {
            None => Ok(()),
            Some(window) => {
                let detail = "this architecture does not record which layers slide";
                Err(GgufError::unsupported_key(self.key(WINDOW), window, detail))
            }
        }
    }

    /// Refuses a pattern.
    pub(super) fn refuse_pattern(&self) -> Result<(), GgufError> {
        let pattern = self.key(PATTERN);
        match self.metadata.contains(&pattern) {
            true => Err(GgufError::unsupported_key(pattern, "a pattern", "all layers must slide")),
            false => Ok(()),
        }
    }
}

const WINDOW: &str = "attention.sliding_window";
const PATTERN: &str = "attention.sliding_window_pattern";

fn positive_size(key: &str, value: u64, limit: u64) -> Result<usize, GgufError> {
    match usize::try_from(value) {
        Ok(0) => Err(GgufError::bad_key(key, "is 0")),
        Ok(size) if value <= limit => Ok(size),
        _ => Err(GgufError::bad_key(key, format!("{value} is too large"))),
    }
}
