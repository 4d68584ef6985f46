//! Rotary position embedding: frequencies of each kind of scaling.

use std::f64::consts::TAU;

use cortiq_cmf::RopeScaling;

use crate::{ModelError, RopeSpec};

/// What an executor needs to rotate a head: `angle(position, i) = position * inv_freq[i]`, cosine and sine both
/// times `attention_factor`. Dimensions beyond `2 * inv_freq.len()` are left alone.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeTable {
    /// Radians per position, one per rotated pair.
    pub inv_freq: Vec<f32>,
    /// Frequencies for sequences longer than a threshold (longrope).
    pub long: Option<LongTable>,
    /// Factor on cosine and sine; 1 except for yarn and longrope.
    pub attention_factor: f32,
    /// Which dimensions form a pair.
    pub pairing: Pairing,
}

/// The other frequencies of longrope.
#[derive(Clone, Debug, PartialEq)]
pub struct LongTable {
    /// Longest sequence for which the ordinary frequencies hold.
    pub threshold: usize,
    /// Radians per position, one per rotated pair.
    pub inv_freq: Vec<f32>,
}

/// Which dimensions are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// `(x[i], x[i + pairs])`.
    Halves,
    /// `(x[2 i], x[2 i + 1])`; the results go to `(i, i + pairs)`, which changes no dot product.
    Interleaved,
}

impl RopeTable {
    /// Frequencies of `spec` (formulas: RoFormer; llama3 and yarn as published with Llama 3.1 and in the YaRN paper).
    pub fn new(spec: &RopeSpec) -> Result<Self, ModelError> {
        let base: Vec<f64> = (0..spec.dims / 2)
            .map(|i| if i < spec.turning_pairs { spec.theta.powf(-2.0 * i as f64 / spec.dims as f64) } else { 0.0 })
            .collect();
        let mut long = None;
        let (scaled, attention_factor) = match &spec.scaling {
            None => (base, 1.0),
            Some(RopeScaling::Linear { factor }) => (base.iter().map(|f| f / factor).collect(), 1.0),
            Some(RopeScaling::Llama3 {
                factor,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings,
            }) => {
                let original = *original_max_position_embeddings as f64;
                (llama3(&base, *factor, *low_freq_factor, *high_freq_factor, original), 1.0)
            }
            Some(scaling @ RopeScaling::Yarn { .. }) => yarn(&base, spec, scaling),
            Some(RopeScaling::LongRope {
                short_factor,
                long_factor,
                original_max_position_embeddings,
                attention_factor,
            }) => {
                let threshold = *original_max_position_embeddings;
                long = Some(LongTable { threshold, inv_freq: frequencies(&divided(&base, long_factor)?)? });
                let factor = attention_factor.unwrap_or_else(|| longrope_attention(spec.max_positions, threshold));
                (divided(&base, short_factor)?, factor)
            }
        };
        let attention_factor = attention_factor as f32;
        if !attention_factor.is_finite() {
            return Err(ModelError::Header { field: "rope_scaling", reason: "it has no finite factor".to_owned() });
        }
        Ok(Self { inv_freq: frequencies(&scaled)?, long, attention_factor, pairing: spec.pairing })
    }

    /// Number of rotated pairs.
    pub fn pairs(&self) -> usize {
        self.inv_freq.len()
    }

    /// Writes cosine and sine of one position of a sequence of `known_len` positions, each `[pairs]`. The angle is
    /// an f64 product, so that long contexts keep their precision.
    pub fn fill(&self, position: usize, known_len: usize, cos: &mut [f32], sin: &mut [f32]) {
        let inv_freq = match &self.long {
            Some(long) if known_len > long.threshold => &long.inv_freq,
            _ => &self.inv_freq,
        };
        for ((f, c), s) in inv_freq.iter().zip(cos).zip(sin) {
            let (sine, cosine) = (position as f64 * f64::from(*f)).sin_cos();
            *c = cosine as f32 * self.attention_factor;
            *s = sine as f32 * self.attention_factor;
        }
    }
}

/// The frequencies in f32, which must be finite.
fn frequencies(values: &[f64]) -> Result<Vec<f32>, ModelError> {
    let values: Vec<f32> = values.iter().map(|&f| f as f32).collect();
    if values.iter().any(|f| !f.is_finite()) {
        return Err(ModelError::Header { field: "rope_scaling", reason: "frequencies are not finite".to_owned() });
    }
    Ok(values)
}

/// Every frequency divided by its own factor.
fn divided(base: &[f64], factors: &[f64]) -> Result<Vec<f64>, ModelError> {
    if base.len() != factors.len() {
        let reason = format!("{} factors for {} frequencies", factors.len(), base.len());
        return Err(ModelError::Header { field: "rope_scaling", reason });
    }
    Ok(base.iter().zip(factors).map(|(f, factor)| f / factor).collect())
}

/// `sqrt(1 + ln(max / original) / ln(original))`, 1 when the context is not extended.
fn longrope_attention(max_positions: usize, original: usize) -> f64 {
    let (max, original) = (max_positions as f64, original as f64);
    if max <= original { 1.0 } else { (1.0 + (max / original).ln() / original.ln()).sqrt() }
}

/// Long wavelengths divided by `factor`, short ones kept, a linear blend between.
fn llama3(base: &[f64], factor: f64, low: f64, high: f64, original: f64) -> Vec<f64> {
    base.iter()
        .map(|&f| {
            let turns = original * f / TAU;
            let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
            keep * f + (1.0 - keep) * f / factor
        })
        .collect()
}

/// Frequencies and attention factor of YaRN.
fn yarn(base: &[f64], spec: &RopeSpec, scaling: &RopeScaling) -> (Vec<f64>, f64) {
    let RopeScaling::Yarn {
        factor,
        original_max_position_embeddings,
        beta_fast,
        beta_slow,
        truncate,
        attention_factor,
        mscale,
        mscale_all_dim,
    } = scaling
    else {
        return (base.to_vec(), 1.0);
    };
    let (dims, original) = (spec.dims as f64, *original_max_position_embeddings as f64);
    // The (fractional) pair index that makes `rotations` turns within the original context.
    let pair_of = |rotations: f64| dims * (original / (rotations * TAU)).ln() / (2.0 * spec.theta.ln());
    let (mut low, mut high) = (pair_of(*beta_fast), pair_of(*beta_slow));
    if *truncate {
        (low, high) = (low.floor(), high.ceil());
    }
    (low, high) = (low.max(0.0), high.min(dims - 1.0));
    if low == high {
        high += 0.001; // the published ramp avoids a division by zero this way
    }
    let scaled = base
        .iter()
        .enumerate()
        .map(|(i, &f)| {
            let interpolate = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            interpolate * f / factor + (1.0 - interpolate) * f
        })
        .collect();
    let magnitude = |m: f64| if *factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let default = match (mscale, mscale_all_dim) {
        (Some(m), Some(all)) if *m != 0.0 && *all != 0.0 => magnitude(*m) / magnitude(*all),
        _ => magnitude(1.0),
    };
    (scaled, attention_factor.unwrap_or(default))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(scaling: Option<RopeScaling>) -> RopeSpec {
        RopeSpec { dims: 8, turning_pairs: 4, theta: 10_000.0, scaling, max_positions: 64, pairing: Pairing::Halves }
    }

    #[test]
    fn plain_frequencies_are_powers_of_the_base() {
        let table = RopeTable::new(&spec(None)).unwrap();
        assert_eq!(table.inv_freq, [1.0, 0.1, 0.01, 0.001]);
        assert_eq!(table.attention_factor, 1.0);
        let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
        table.fill(1, 2, &mut cos, &mut sin);
        assert_eq!((cos[0], sin[0]), (1f32.cos(), 1f32.sin()));
    }

    #[test]
    fn linear_divides_every_frequency() {
        let table = RopeTable::new(&spec(Some(RopeScaling::Linear { factor: 4.0 }))).unwrap();
        assert_eq!(table.inv_freq, [0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn pairs_that_do_not_turn_have_frequency_zero() {
        let table = RopeTable::new(&RopeSpec { turning_pairs: 1, ..spec(None) }).unwrap();
        assert_eq!(table.inv_freq, [1.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn longrope_chooses_by_the_known_length() {
        let scaling = RopeScaling::LongRope {
            short_factor: vec![1.0; 4],
            long_factor: vec![2.0; 4],
            original_max_position_embeddings: 16,
            attention_factor: None,
        };
        let table = RopeTable::new(&spec(Some(scaling.clone()))).unwrap();
        assert_eq!(table.attention_factor, (1.0 + 4f64.ln() / 16f64.ln()).sqrt() as f32);
        let angle = |position, known_len| {
            let (mut cos, mut sin) = ([0.0; 4], [0.0; 4]);
            table.fill(position, known_len, &mut cos, &mut sin);
            sin[0].atan2(cos[0])
        };
        assert!((angle(1, 16) - 1.0).abs() < 1e-6 && (angle(1, 17) - 0.5).abs() < 1e-6);
        let broken = RopeSpec { dims: 6, turning_pairs: 3, ..spec(Some(scaling)) };
        assert!(RopeTable::new(&broken).unwrap_err().to_string().contains("4 factors for 3"));
    }
}
