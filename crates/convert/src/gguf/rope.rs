//! RoPE scaling: the `rope.scaling.*` keys and the `rope_freqs.weight` tensor.

use std::f64::consts::TAU;

use cortiq_cmf::RopeScaling;

use super::GgufError;
use super::metadata::{Metadata, required};

const LOG_MULTIPLIER: &str = "yarn_log_multiplier";
/// Relative difference up to which stored divisors count as those of the llama3 rule.
const FACTOR_TOLERANCE: f64 = 1e-3;
/// The wavelength bounds of every published llama3-style model.
const LOW_FREQ_FACTOR: f64 = 1.0;
const HIGH_FREQ_FACTOR: f64 = 4.0;
/// Original context lengths that are tried: 2^6 … 2^20.
const ORIGINAL_CONTEXT_BITS: std::ops::RangeInclusive<u32> = 6..=20;

/// Reads `{arch}.rope.scaling.*`: type `none`, `linear` or `yarn`.
///
/// # Errors
/// [`GgufError`] naming a key that is missing, malformed, or asks for something else.
pub(super) fn from_metadata(metadata: &Metadata, arch: &str) -> Result<Option<RopeScaling>, GgufError> {
    let key = |name: &str| scaling_key(arch, name);
    for name in ["attn_factor", "yarn_attn_factor", "yarn_ext_factor"] {
        refuse_unless_one(metadata, &key(name))?;
    }
    let type_key = key("type");
    let old_linear = format!("{arch}.rope.scale_linear");
    let kind = match metadata.string(&type_key)? {
        Some(kind) => kind,
        None if metadata.contains(&old_linear) => {
            let factor = positive(metadata, &old_linear)?;
            return Ok((factor != 1.0).then_some(RopeScaling::Linear { factor }));
        }
        None if metadata.contains(&key("factor")) => return Err(GgufError::missing_key(type_key)),
        None => return Ok(None),
    };
    match kind {
        "none" => Ok(None),
        "linear" => {
            let factor = positive(metadata, &key("factor"))?;
            Ok((factor != 1.0).then_some(RopeScaling::Linear { factor }))
        }
        "yarn" => {
            let log_multiplier = key(LOG_MULTIPLIER);
            match metadata.number(&log_multiplier)? {
                Some(value) if value != 0.0 => Err(GgufError::unsupported_key(log_multiplier, value, "")),
                _ => read_yarn(metadata, key, None).map(Some),
            }
        }
        other => Err(GgufError::unsupported_key(type_key, other, "none, linear and yarn are")),
    }
}

fn scaling_key(arch: &str, name: &str) -> String {
    format!("{arch}.rope.scaling.{name}")
}

/// As [`from_metadata`], where YaRN has an `mscale` and an equal `mscale_all_dim`, stored times 0.1: the rotation then
/// keeps its magnitude and the scores get the factor (docs/behaviour.md §2).
///
/// # Errors
/// As for [`from_metadata`]; YaRN without that key, since readers of such files disagree on the magnitude.
pub(super) fn with_mscale(metadata: &Metadata, arch: &str) -> Result<Option<RopeScaling>, GgufError> {
    let key = scaling_key(arch, LOG_MULTIPLIER);
    let multiplier = metadata.number(&key)?.unwrap_or(0.0);
    if multiplier == 0.0 {
        return match from_metadata(metadata, arch)? {
            Some(RopeScaling::Yarn { .. }) => Err(GgufError::missing_key(key)),
            scaling => Ok(scaling),
        };
    }
    let type_key = scaling_key(arch, "type");
    match metadata.string(&type_key)? {
        Some("yarn") => {}
        // Written for every model that has the number, in use or not.
        None | Some("none") => return Ok(None),
        Some(other) => return Err(GgufError::unsupported_key(type_key, other, "none and yarn are")),
    }
    for name in ["attn_factor", "yarn_attn_factor", "yarn_ext_factor"] {
        refuse_unless_one(metadata, &scaling_key(arch, name))?;
    }
    // The stored product is an f32; the factor has no more digits than that.
    let mscale = shortest_decimal(multiplier / 0.1);
    read_yarn(metadata, |name| scaling_key(arch, name), Some(mscale)).map(Some)
}

/// The shortest decimal that rounds to the same f32.
fn shortest_decimal(value: f64) -> f64 {
    (value as f32).to_string().parse().unwrap_or(value)
}

/// The longrope rule with one divisor per pair of dimensions, `short` within the original context and `long` beyond
/// it. `attn_factor` is the factor on cosine and sine; it is left out where it is the one that follows from the
/// context lengths.
///
/// # Errors
/// [`GgufError`] naming the key or tensor.
pub(super) fn long_rope(
    metadata: &Metadata,
    arch: &str,
    [short, long]: [&[f32]; 2],
    [rotary_dim, context]: [usize; 2],
) -> Result<RopeScaling, GgufError> {
    for (name, factors) in [("short", short), ("long", long)] {
        if factors.len() != rotary_dim / 2 || factors.iter().any(|&f| !f.is_finite() || f <= 0.0) {
            let reason = format!("does not have {} positive divisors", rotary_dim / 2);
            return Err(GgufError::malformed(format!("tensor `rope_factors_{name}.weight`"), reason));
        }
    }
    let original = original_context(metadata, arch)?;
    let factor_key = scaling_key(arch, "attn_factor");
    let factor = positive(metadata, &factor_key)?;
    let scale = context as f64 / original as f64;
    let implied = if scale > 1.0 { (1.0 + scale.ln() / (original as f64).ln()).sqrt() } else { 1.0 };
    let decimals = |factors: &[f32]| factors.iter().map(|&f| shortest_decimal(f64::from(f))).collect();
    Ok(RopeScaling::LongRope {
        short_factor: decimals(short),
        long_factor: decimals(long),
        original_max_position_embeddings: original,
        attention_factor: ((factor - implied).abs() > 1e-5 * implied).then_some(factor),
    })
}

fn original_context(metadata: &Metadata, arch: &str) -> Result<usize, GgufError> {
    let key = scaling_key(arch, "original_context_length");
    let original = required(&key, metadata.unsigned(&key)?)?;
    match usize::try_from(original) {
        Ok(0) => Err(GgufError::bad_key(key, "is 0")),
        Ok(original) => Ok(original),
        Err(_) => Err(GgufError::bad_key(key, format!("{original} is too large"))),
    }
}

/// `mscale` is also `mscale_all_dim`.
fn read_yarn(metadata: &Metadata, key: impl Fn(&str) -> String, mscale: Option<f64>) -> Result<RopeScaling, GgufError> {
    let original_key = key("original_context_length");
    let original = required(&original_key, metadata.unsigned(&original_key)?)?;
    let original_max_position_embeddings =
        usize::try_from(original).map_err(|_| GgufError::bad_key(original_key, format!("{original} is too large")))?;
    let bound = |name: &str, default: f64| {
        let key = key(name);
        if metadata.contains(&key) { positive(metadata, &key) } else { Ok(default) }
    };
    Ok(RopeScaling::Yarn {
        factor: positive(metadata, &key("factor"))?,
        original_max_position_embeddings,
        beta_fast: bound("yarn_beta_fast", 32.0)?,
        beta_slow: bound("yarn_beta_slow", 1.0)?,
        truncate: true,
        attention_factor: None,
        mscale,
        mscale_all_dim: mscale,
    })
}

fn refuse_unless_one(metadata: &Metadata, key: &str) -> Result<(), GgufError> {
    match metadata.number(key)? {
        Some(value) if value != 1.0 => Err(GgufError::unsupported_key(key, value, "1 is")),
        _ => Ok(()),
    }
}

fn positive(metadata: &Metadata, key: &str) -> Result<f64, GgufError> {
    let value = required(key, metadata.number(key)?)?;
    if value > 0.0 { Ok(value) } else { Err(GgufError::bad_key(key, "is not positive")) }
}

/// Finds the llama3 parameters that give the stored frequency divisors, `[rotary_dim / 2]`.
///
/// GGUF keeps the divisors only. All published models use the wavelength bounds 1 and 4; the
/// factor is the largest divisor (or 8 or 32, should no frequency be scaled in full) and the
/// original context a power of two, or what `{arch}.rope.scaling.original_context_length` says.
/// The parameters are accepted only if all divisors follow from them.
///
/// # Errors
/// [`GgufError::RopeFreqs`] when no such parameters exist.
pub(super) fn from_divisors(
    divisors: &[f32],
    rotary_dim: usize,
    theta: f64,
    stated_original: Option<u64>,
) -> Result<Option<RopeScaling>, GgufError> {
    let bad = |reason: String| GgufError::RopeFreqs { reason };
    if divisors.len() != rotary_dim / 2 {
        let reason = format!("{} divisors for {rotary_dim} rotary dimensions", divisors.len());
        return Err(bad(reason));
    }
    if divisors.iter().any(|d| !d.is_finite() || *d <= 0.0) {
        return Err(bad("a divisor is not a positive number".to_owned()));
    }
    if divisors.iter().all(|&d| d == 1.0) {
        return Ok(None);
    }
    let largest = divisors.iter().copied().map(f64::from).fold(1.0, f64::max);
    let originals: Vec<u64> = match stated_original {
        Some(original) => vec![original],
        None => ORIGINAL_CONTEXT_BITS.map(|bits| 1 << bits).collect(),
    };
    for factor in [largest, largest.round(), 8.0, 32.0] {
        for &original in &originals {
            let expected = llama3_divisors(rotary_dim, theta, factor, original as f64);
            let close = divisors.iter().zip(expected).all(|(&d, e)| (f64::from(d) - e).abs() <= FACTOR_TOLERANCE * e);
            if close && let Ok(original_max_position_embeddings) = usize::try_from(original) {
                return Ok(Some(RopeScaling::Llama3 {
                    factor,
                    low_freq_factor: LOW_FREQ_FACTOR,
                    high_freq_factor: HIGH_FREQ_FACTOR,
                    original_max_position_embeddings,
                }));
            }
        }
    }
    Err(bad("its divisors do not follow from the llama3 scaling rule".to_owned()))
}

/// The divisors of the llama3 rule, as published with Llama 3.1: wavelengths above
/// `original / low` are divided by `factor`, below `original / high` kept, blended in between.
pub(super) fn llama3_divisors(rotary_dim: usize, theta: f64, factor: f64, original: f64) -> impl Iterator<Item = f64> {
    (0..rotary_dim / 2).map(move |i| {
        let wavelength = TAU * theta.powf(2.0 * i as f64 / rotary_dim as f64);
        if wavelength < original / HIGH_FREQ_FACTOR {
            1.0
        } else if wavelength > original / LOW_FREQ_FACTOR {
            factor
        } else {
            let kept = (original / wavelength - LOW_FREQ_FACTOR) / (HIGH_FREQ_FACTOR - LOW_FREQ_FACTOR);
            1.0 / ((1.0 - kept) / factor + kept)
        }
    })
}
