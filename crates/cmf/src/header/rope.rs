//! `arch.rope_scaling`, an addition to the format (docs/cmf-format.md §3.2.1). The names
//! are those of the `rope_scaling` object in Hugging Face configurations.

use serde::{Deserialize, Serialize};

/// How rotary frequencies differ from `rope_theta^(-2i/d)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub enum RopeScaling {
    /// All frequencies are divided by `factor`.
    Linear {
        /// Divisor.
        factor: f64,
    },
    /// The Llama 3 rule: long wavelengths are divided by `factor`, with a smooth passage.
    Llama3 {
        /// Divisor of the long wavelengths.
        factor: f64,
        /// Wavelengths above `original / this` are divided in full.
        low_freq_factor: f64,
        /// Wavelengths below `original / this` stay.
        high_freq_factor: f64,
        /// Context length before scaling.
        original_max_position_embeddings: usize,
    },
    /// YaRN (arXiv 2309.00071).
    Yarn {
        /// Divisor of the interpolated frequencies.
        factor: f64,
        /// Context length before scaling.
        original_max_position_embeddings: usize,
        /// Rotations above which a dimension is left alone.
        #[serde(default = "beta_fast")]
        beta_fast: f64,
        /// Rotations below which a dimension is interpolated in full.
        #[serde(default = "beta_slow")]
        beta_slow: f64,
        /// The borders of the ramp are rounded to whole dimensions.
        #[serde(default = "truncate")]
        truncate: bool,
        /// Factor on cosine and sine, if given explicitly.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
        /// Numerator of the derived factor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale: Option<f64>,
        /// Denominator of the derived factor.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        mscale_all_dim: Option<f64>,
    },
    /// LongRoPE (arXiv 2402.13753): one divisor per frequency, two sets.
    LongRope {
        /// Divisors for contexts up to the original length.
        short_factor: Vec<f64>,
        /// Divisors for longer contexts.
        long_factor: Vec<f64>,
        /// Context length before scaling.
        original_max_position_embeddings: usize,
        /// Factor on cosine and sine, if given explicitly.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        attention_factor: Option<f64>,
    },
}

fn beta_fast() -> f64 {
    32.0
}
fn beta_slow() -> f64 {
    1.0
}
fn truncate() -> bool {
    true
}
