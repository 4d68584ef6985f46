//! Rotary embedding parameters, in the spellings of transformers 4 (`rope_theta`, `rope_scaling`)
//! and transformers 5 (`rope_parameters`).

use cortiq_cmf::RopeScaling;

use crate::ConvertError;
use crate::hf::config::Object;

/// Rotary embedding of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rope {
    /// Base of the frequencies.
    pub(crate) theta: f64,
    /// Change of the frequencies for long contexts.
    pub(crate) scaling: Option<RopeScaling>,
}

/// A kind of scaling; a family lists the ones it supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RopeKind {
    Linear,
    Llama3,
    Yarn,
    LongRope,
}

const FACTOR: std::ops::RangeInclusive<f64> = 1.0..=65_536.0;
const THETA: std::ops::RangeInclusive<f64> = 1.0..=1e12;
const BETA: std::ops::RangeInclusive<f64> = 1e-6..=1e6;
const POSITIONS: std::ops::RangeInclusive<usize> = 1..=(1 << 31);

/// Reads the rotary parameters of `config`, of a family that rotates whole heads. `max_positions` is
/// `max_position_embeddings`, the default of `original_max_position_embeddings`.
pub(crate) fn parse(config: &Object<'_>, supported: &[RopeKind], max_positions: usize) -> Result<Rope, ConvertError> {
    let (object, _) = parameters(config)?;
    for owner in object.iter().chain([config]) {
        if let Some(part) = owner.float("partial_rotary_factor", 0.0..=1.0)?
            && part != 1.0
        {
            return Err(owner.unsupported("partial_rotary_factor", part, "this family rotates whole heads"));
        }
    }
    parse_angles(config, supported, max_positions)
}

/// As [`parse`], for a family that rotates a part of each head: also gives `partial_rotary_factor`, by default `part`.
pub(crate) fn parse_partial(
    config: &Object<'_>,
    supported: &[RopeKind],
    max_positions: usize,
    part: f64,
) -> Result<(Rope, f64), ConvertError> {
    let (object, _) = parameters(config)?;
    let mut found = None;
    for owner in object.iter().chain([config]) {
        found = match found {
            None => owner.float("partial_rotary_factor", 0.0..=1.0)?,
            found => found,
        };
    }
    Ok((parse_angles(config, supported, max_positions)?, found.unwrap_or(part)))
}

/// The object with the parameters and its key: transformers 5, else transformers 4.
fn parameters<'a>(config: &Object<'a>) -> Result<(Option<Object<'a>>, &'static str), ConvertError> {
    Ok(match config.child("rope_parameters")? {
        Some(object) => (Some(object), "rope_parameters"),
        None => (config.child("rope_scaling")?, "rope_scaling"),
    })
}

/// Everything but the part of the head that is rotated.
fn parse_angles(config: &Object<'_>, supported: &[RopeKind], max_positions: usize) -> Result<Rope, ConvertError> {
    let (object, object_key) = parameters(config)?;
    let inner_theta = object.as_ref().map(|o| o.float("rope_theta", THETA)).transpose()?.flatten();
    let theta = match inner_theta {
        Some(theta) => theta,
        None => config.float("rope_theta", THETA)?.unwrap_or(10_000.0),
    };
    let Some(object) = object else { return Ok(Rope { theta, scaling: None }) };
    if let Some(key) = object.object_keys().first() {
        return Err(config.unsupported(object_key, key, "rotary parameters per layer type"));
    }
    let scaling = scaling(&object, config, supported, max_positions)?;
    Ok(Rope { theta, scaling })
}

/// The parameters of one type of layers, `rope_parameters.<layer type>`; `theta` is the base where it has none.
/// The part of the head that is rotated is for the family to read.
pub(crate) fn parse_layer_type(
    entry: &Object<'_>,
    supported: &[RopeKind],
    max_positions: usize,
    theta: f64,
) -> Result<Rope, ConvertError> {
    let theta = entry.float("rope_theta", THETA)?.unwrap_or(theta);
    Ok(Rope { theta, scaling: scaling(entry, entry, supported, max_positions)? })
}

/// The scaling that `object` describes; `config` has the keys of the model.
fn scaling(
    object: &Object<'_>,
    config: &Object<'_>,
    supported: &[RopeKind],
    max_positions: usize,
) -> Result<Option<RopeScaling>, ConvertError> {
    let type_key = if object.get("rope_type").is_some() { "rope_type" } else { "type" };
    let kind = match object.string(type_key)? {
        None | Some("default") => return Ok(None),
        Some("linear") => (RopeKind::Linear, "linear"),
        Some("llama3") => (RopeKind::Llama3, "llama3"),
        Some("yarn") => (RopeKind::Yarn, "yarn"),
        // The first Phi-3 checkpoints call it `su`.
        Some("longrope" | "su") => (RopeKind::LongRope, "longrope"),
        Some(other) => return Err(object.unsupported(type_key, other, "unknown kind of rotary scaling")),
    };
    if !supported.contains(&kind.0) {
        return Err(object.unsupported(type_key, kind.1, "not in this family"));
    }
    let scaling = match kind.0 {
        RopeKind::Linear => RopeScaling::Linear { factor: object.required_float("factor", FACTOR)? },
        RopeKind::Llama3 => llama3(object, max_positions)?,
        RopeKind::Yarn => yarn(object, max_positions)?,
        RopeKind::LongRope => long_rope(object, config)?,
    };
    Ok(Some(scaling))
}

/// One divisor per pair of dimensions: a list within the original context and one beyond it.
fn long_rope(object: &Object<'_>, config: &Object<'_>) -> Result<RopeScaling, ConvertError> {
    for key in ["short_mscale", "long_mscale"] {
        if let Some(value) = object.get(key) {
            return Err(object.unsupported(key, value, "the factor on cosine and sine is `attention_factor`"));
        }
    }
    let factors = |key: &str| -> Result<Vec<f64>, ConvertError> {
        object.floats(key, 1e-6..=1e6)?.ok_or_else(|| object.invalid(key, "is missing"))
    };
    let (short_factor, long_factor) = (factors("short_factor")?, factors("long_factor")?);
    if short_factor.is_empty() || short_factor.len() != long_factor.len() {
        let reason = format!("has {} entries, short_factor has {}", long_factor.len(), short_factor.len());
        return Err(object.invalid("long_factor", reason));
    }
    // The key of the model wins over that of the object, as in transformers.
    let original = match original_positions(config)? {
        Some(original) => original,
        None => original_positions(object)?
            .ok_or_else(|| object.invalid("original_max_position_embeddings", "is missing"))?,
    };
    Ok(RopeScaling::LongRope {
        short_factor,
        long_factor,
        original_max_position_embeddings: original,
        attention_factor: object.float("attention_factor", 1e-6..=1e6)?,
    })
}

fn llama3(object: &Object<'_>, max_positions: usize) -> Result<RopeScaling, ConvertError> {
    let low_freq_factor = object.required_float("low_freq_factor", BETA)?;
    let high_freq_factor = object.required_float("high_freq_factor", BETA)?;
    if high_freq_factor <= low_freq_factor {
        return Err(object.invalid("high_freq_factor", "must be greater than low_freq_factor"));
    }
    Ok(RopeScaling::Llama3 {
        factor: object.required_float("factor", FACTOR)?,
        low_freq_factor,
        high_freq_factor,
        original_max_position_embeddings: original_positions(object)?.unwrap_or(max_positions),
    })
}

fn yarn(object: &Object<'_>, max_positions: usize) -> Result<RopeScaling, ConvertError> {
    let original = original_positions(object)?;
    let factor = match (object.float("factor", FACTOR)?, original) {
        (Some(factor), _) => factor,
        // Checkpoints that give only the original length mean the ratio of both lengths.
        (None, Some(original)) if original <= max_positions => max_positions as f64 / original as f64,
        (None, _) => return Err(object.invalid("factor", "is missing")),
    };
    let beta_fast = object.float("beta_fast", BETA)?.unwrap_or(32.0);
    let beta_slow = object.float("beta_slow", BETA)?.unwrap_or(1.0);
    if beta_fast < beta_slow {
        return Err(object.invalid("beta_fast", "must not be less than beta_slow"));
    }
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position_embeddings: original.unwrap_or(max_positions),
        beta_fast,
        beta_slow,
        truncate: object.boolean("truncate")?.unwrap_or(true),
        attention_factor: object.float("attention_factor", 1e-6..=1e6)?,
        mscale: object.float("mscale", 0.0..=1e6)?,
        mscale_all_dim: object.float("mscale_all_dim", 0.0..=1e6)?,
    })
}

fn original_positions(object: &Object<'_>) -> Result<Option<usize>, ConvertError> {
    object.int("original_max_position_embeddings", POSITIONS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf::config::JsonFile;

    const ALL: [RopeKind; 4] = [RopeKind::Linear, RopeKind::Llama3, RopeKind::Yarn, RopeKind::LongRope];

    fn rope(text: &str, supported: &[RopeKind]) -> Result<Rope, ConvertError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), text).unwrap();
        let file = JsonFile::read(dir.path(), "config.json").unwrap().unwrap();
        parse(&file.object(), supported, 1024)
    }

    #[test]
    fn both_spellings_agree() {
        let cases = [
            (
                r#"{"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}}"#,
                r#"{"rope_theta": 5e5, "rope_scaling": null}"#,
            ),
            (
                r#"{"rope_parameters": {"rope_theta": 5e5, "rope_type": "linear", "factor": 4}}"#,
                r#"{"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}}"#,
            ),
            (
                r#"{"rope_parameters": {"rope_theta": 5e5, "rope_type": "yarn", "factor": 4.0, "beta_fast": 16}}"#,
                r#"{"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16,
                    "beta_slow": 1, "truncate": true, "original_max_position_embeddings": 1024}}"#,
            ),
        ];
        for (v5, v4) in cases {
            let (a, b) = (rope(v5, &ALL).unwrap(), rope(v4, &ALL).unwrap());
            assert_eq!(a, b);
            assert_eq!(a.theta, 5e5);
        }
    }

    #[test]
    fn the_original_length_of_longrope_may_be_outside() {
        let expected = RopeScaling::LongRope {
            short_factor: vec![1.0, 1.5],
            long_factor: vec![2.0, 3.0],
            original_max_position_embeddings: 64,
            attention_factor: None,
        };
        for text in [
            r#"{"rope_parameters": {"rope_type": "longrope", "short_factor": [1, 1.5], "long_factor": [2, 3],
                "original_max_position_embeddings": 64}}"#,
            r#"{"original_max_position_embeddings": 64,
                "rope_scaling": {"type": "su", "short_factor": [1, 1.5], "long_factor": [2, 3]}}"#,
        ] {
            assert_eq!(rope(text, &ALL).unwrap().scaling, Some(expected.clone()));
        }
    }

    #[test]
    fn yarn_keeps_every_parameter() {
        let text = r#"{"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 256,
            "attention_factor": 1.5, "mscale": 0.7, "mscale_all_dim": 0.8, "truncate": false}}"#;
        let expected = RopeScaling::Yarn {
            factor: 4.0,
            original_max_position_embeddings: 256,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: false,
            attention_factor: Some(1.5),
            mscale: Some(0.7),
            mscale_all_dim: Some(0.8),
        };
        assert_eq!(rope(text, &ALL).unwrap(), Rope { theta: 10_000.0, scaling: Some(expected) });
    }

    #[test]
    fn refusals_name_the_type_or_the_key() {
        let cases = [
            (r#"{"rope_scaling": {"type": "dynamic", "factor": 2}}"#, "dynamic"),
            (r#"{"rope_scaling": {"rope_type": "longrope", "long_factor": [1]}}"#, "rope_scaling.short_factor"),
            (
                r#"{"rope_scaling": {"type": "longrope", "long_factor": [1], "short_factor": [1, 2]}}"#,
                "rope_scaling.long_factor",
            ),
            (
                r#"{"rope_scaling": {"type": "su", "long_factor": [1], "short_factor": [1]}}"#,
                "original_max_position_embeddings",
            ),
            (
                r#"{"rope_scaling": {"type": "longrope", "long_factor": [1], "short_factor": [1], "long_mscale": 1.2}}"#,
                "rope_scaling.long_mscale",
            ),
            (r#"{"rope_scaling": {"rope_type": "linear"}}"#, "rope_scaling.factor"),
            (r#"{"rope_scaling": {"rope_type": "linear", "factor": 0.5}}"#, "rope_scaling.factor"),
            (r#"{"rope_scaling": {"rope_type": "yarn"}}"#, "rope_scaling.factor"),
            (r#"{"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}}"#, "beta_fast"),
            (
                r#"{"rope_scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 4, "high_freq_factor": 1}}"#,
                "high_freq_factor",
            ),
            (r#"{"rope_theta": 0}"#, "rope_theta"),
            (r#"{"rope_theta": "big"}"#, "rope_theta"),
            (r#"{"partial_rotary_factor": 0.5}"#, "partial_rotary_factor"),
            (r#"{"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}"#, "full_attention"),
            (r#"{"rope_scaling": 3}"#, "rope_scaling"),
        ];
        for (text, needle) in cases {
            let message = rope(text, &ALL).unwrap_err().to_string();
            assert!(message.contains(needle), "{text}: {message}");
        }
        let yarn = r#"{"rope_scaling": {"rope_type": "yarn", "factor": 2}}"#;
        assert!(rope(yarn, &[RopeKind::Linear]).unwrap_err().to_string().contains("yarn"));
    }
}
