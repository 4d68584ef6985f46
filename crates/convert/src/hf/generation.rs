//! Sampling defaults of `generation_config.json`.

use cortiq_cmf::GenerationDefaults;

use crate::ConvertError;
use crate::hf::config::Object;

/// The file with the sampling defaults.
pub(crate) const FILE: &str = "generation_config.json";

/// The defaults that the file names; `None` when it names none.
///
/// # Errors
/// A value of the wrong type or out of range.
pub(crate) fn defaults(file: &Object<'_>) -> Result<Option<GenerationDefaults>, ConvertError> {
    let float = |key: &str, low: f64, high: f64| -> Result<Option<f32>, ConvertError> {
        Ok(file.float(key, low..=high)?.map(|x| x as f32))
    };
    let found = GenerationDefaults {
        temperature: float("temperature", 0.0, 100.0)?,
        top_p: float("top_p", 0.0, 1.0)?,
        min_p: float("min_p", 0.0, 1.0)?,
        repetition_penalty: float("repetition_penalty", 1e-3, 1e3)?,
        top_k: top_k(file)?,
        do_sample: file.boolean("do_sample")?,
    };
    Ok((found != GenerationDefaults::default()).then_some(found))
}

/// `top_k`; both 0 and -1 are in use for "all tokens", which is 0 here.
fn top_k(file: &Object<'_>) -> Result<Option<u32>, ConvertError> {
    if file.get("top_k").and_then(serde_json::Value::as_i64) == Some(-1) {
        return Ok(Some(0));
    }
    let top_k = file.int("top_k", 0..=u32::MAX as usize)?;
    Ok(top_k.and_then(|k| u32::try_from(k).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hf::config::JsonFile;

    fn parse(text: &str) -> Result<Option<GenerationDefaults>, ConvertError> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(FILE), text).unwrap();
        defaults(&JsonFile::read(dir.path(), FILE).unwrap().unwrap().object())
    }

    #[test]
    fn values_are_taken_and_checked() {
        let text = r#"{"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.0,
            "repetition_penalty": 1.05, "transformers_version": "5.0.0"}"#;
        let expected = GenerationDefaults {
            temperature: Some(0.6),
            top_p: Some(0.95),
            min_p: Some(0.0),
            repetition_penalty: Some(1.05),
            top_k: Some(20),
            do_sample: Some(true),
        };
        assert_eq!(parse(text).unwrap(), Some(expected));
        assert_eq!(parse(r#"{"eos_token_id": 3}"#).unwrap(), None);
        assert_eq!(parse(r#"{"top_k": -1}"#).unwrap().unwrap().top_k, Some(0));
        for (text, key) in [
            (r#"{"temperature": -1}"#, "temperature"),
            (r#"{"top_p": 1.5}"#, "top_p"),
            (r#"{"top_k": -2}"#, "top_k"),
            (r#"{"min_p": "x"}"#, "min_p"),
            (r#"{"repetition_penalty": 0}"#, "repetition_penalty"),
            (r#"{"do_sample": 1}"#, "do_sample"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(key), "{message}");
        }
    }
}
