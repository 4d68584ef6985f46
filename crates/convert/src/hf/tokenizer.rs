//! `tokenizer.json`, the special tokens and the chat template of a checkpoint.

use std::path::Path;

use cortiq_cmf::TokenizerConfig;
use serde_json::Value;
use tokenizers::Tokenizer;

use crate::hf::config::{JsonFile, Object, json_error};
use crate::{ConvertError, files, tokenizer_json};

/// The tokenizer file that is copied into the container.
pub(crate) const TOKENIZER: &str = "tokenizer.json";
/// Names the special tokens; often holds the chat template.
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
/// The chat template as a file of its own; wins over the one in [`TOKENIZER_CONFIG`].
pub(crate) const CHAT_TEMPLATE: &str = "chat_template.jinja";

/// What the checkpoint says about its text side.
pub(crate) struct TextSide {
    /// `tokenizer.json`, verbatim.
    pub(crate) json: Vec<u8>,
    /// Special tokens and chat template for the header.
    pub(crate) config: TokenizerConfig,
    /// Ids that were left out.
    pub(crate) notes: Vec<String>,
}

/// Reads the tokenizer files in `dir`. `config` is the text part of `config.json`, `generation`
/// the content of `generation_config.json`.
///
/// # Errors
/// No `tokenizer.json`, or one that does not load; malformed ids or templates.
pub(crate) fn read(
    dir: &Path,
    config: &Object<'_>,
    generation: Option<&Object<'_>>,
    vocab_size: usize,
) -> Result<TextSide, ConvertError> {
    let json = read_json(dir)?;
    let tokenizer = load(&json)?;
    let file = JsonFile::read(dir, TOKENIZER_CONFIG)?.unwrap_or_default();
    let tokens = file.object();
    let mut notes = Vec::new();

    let mut eos = match generation {
        Some(generation) => generation.token_ids("eos_token_id", vocab_size)?,
        None => Vec::new(),
    };
    if eos.is_empty() {
        eos = config.token_ids("eos_token_id", vocab_size)?;
    }
    if eos.is_empty() {
        eos.extend(token_id(&tokens, "eos_token", &tokenizer)?);
    }
    let mut single = |token_key: &str, id_key: &str| -> Result<Option<u32>, ConvertError> {
        let id = if tokens.has_key(token_key) {
            token_id(&tokens, token_key, &tokenizer)?
        } else {
            first_id(config, id_key, vocab_size, &mut notes)
        };
        Ok(id)
    };
    let bos_token_id = single("bos_token", "bos_token_id")?;
    let pad_token_id = single("pad_token", "pad_token_id")?;
    let chat_template = chat_template(dir, &tokens)?;
    let config = TokenizerConfig { chat_template, eos_token_ids: eos, bos_token_id, pad_token_id };
    Ok(TextSide { json, config, notes })
}

fn read_json(dir: &Path) -> Result<Vec<u8>, ConvertError> {
    let path = dir.join(TOKENIZER);
    files::read(&path).map_err(|e| match e.kind() {
        std::io::ErrorKind::NotFound => ConvertError::MissingFile {
            file: TOKENIZER.to_owned(),
            hint: "a slow tokenizer (tokenizer.model, vocab.json) must be saved in the fast form first".to_owned(),
        },
        _ => ConvertError::io(&path, e),
    })
}

/// Checks that the tokenizer library accepts `json`.
pub(crate) fn load(json: &[u8]) -> Result<Tokenizer, ConvertError> {
    tokenizer_json::load(json).map_err(|reason| ConvertError::Tokenizer { file: TOKENIZER.to_owned(), reason })
}

/// Id of the token that `tokenizer_config.json` names under `key`, if both exist.
fn token_id(tokens: &Object<'_>, key: &str, tokenizer: &Tokenizer) -> Result<Option<u32>, ConvertError> {
    let text = match tokens.get(key) {
        None => return Ok(None),
        Some(Value::String(text)) => text.as_str(),
        Some(Value::Object(token)) => match token.get("content").and_then(Value::as_str) {
            Some(text) => text,
            None => return Err(json_error(TOKENIZER_CONFIG, format!("`{key}` has no string `content`"))),
        },
        Some(_) => return Err(json_error(TOKENIZER_CONFIG, format!("`{key}` is neither a string nor an object"))),
    };
    Ok(tokenizer.token_to_id(text))
}

/// The first id under `key` that the vocabulary has. Published files use -1 and ids past the end for
/// "none" here, so anything else is left out with a note.
fn first_id(config: &Object<'_>, key: &str, vocab_size: usize, notes: &mut Vec<String>) -> Option<u32> {
    match config.token_ids(key, vocab_size) {
        Ok(ids) => ids.first().copied(),
        Err(error) => {
            notes.push(format!("left out: {error}"));
            None
        }
    }
}

/// The chat template: [`CHAT_TEMPLATE`] unless blank, else `chat_template` of
/// [`TOKENIZER_CONFIG`] (of several named ones, `default`).
fn chat_template(dir: &Path, tokens: &Object<'_>) -> Result<Option<String>, ConvertError> {
    let path = dir.join(CHAT_TEMPLATE);
    if let Some(bytes) = files::read_optional(&path).map_err(|e| ConvertError::io(&path, e))? {
        let text =
            String::from_utf8(bytes).map_err(|_| ConvertError::invalid(CHAT_TEMPLATE, "it is not UTF-8 text"))?;
        if !text.trim().is_empty() {
            return Ok(Some(text));
        }
    }
    let text = match tokens.get("chat_template") {
        None => None,
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(named)) => named
            .iter()
            .find(|entry| entry.get("name").and_then(Value::as_str) == Some("default"))
            .and_then(|entry| entry.get("template").and_then(Value::as_str))
            .map(str::to_owned),
        Some(_) => return Err(json_error(TOKENIZER_CONFIG, "`chat_template` is neither a string nor a list")),
    };
    Ok(text.filter(|t| !t.trim().is_empty()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINIMAL: &str = r#"{"version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
        "model": {"type": "WordLevel", "vocab": {"<s>": 0, "</s>": 1, "a": 2, "<pad>": 3}, "unk_token": "a"}}"#;

    struct Dir(tempfile::TempDir);

    impl Dir {
        fn new(config: &str, tokenizer_config: &str) -> Self {
            let dir = tempfile::tempdir().unwrap();
            std::fs::write(dir.path().join("config.json"), config).unwrap();
            std::fs::write(dir.path().join(TOKENIZER_CONFIG), tokenizer_config).unwrap();
            std::fs::write(dir.path().join(TOKENIZER), MINIMAL).unwrap();
            Self(dir)
        }

        fn write(&self, file: &str, text: &str) {
            std::fs::write(self.0.path().join(file), text).unwrap();
        }

        fn read(&self) -> Result<TextSide, ConvertError> {
            let dir = self.0.path();
            let config = JsonFile::read(dir, "config.json").unwrap().unwrap();
            let generation = JsonFile::read(dir, "generation_config.json").unwrap();
            read(dir, &config.object(), generation.as_ref().map(JsonFile::object).as_ref(), 10)
        }
    }

    #[test]
    fn eos_ids_come_from_generation_config_then_config_then_the_token() {
        let dir = Dir::new(r#"{"eos_token_id": [4, 5]}"#, r#"{"eos_token": "</s>"}"#);
        assert_eq!(dir.read().unwrap().config.eos_token_ids, [4, 5]);
        dir.write("generation_config.json", r#"{"eos_token_id": [6, 7, 8]}"#);
        assert_eq!(dir.read().unwrap().config.eos_token_ids, [6, 7, 8]);
        dir.write("generation_config.json", "{}");
        dir.write("config.json", r#"{"eos_token_id": null}"#);
        assert_eq!(dir.read().unwrap().config.eos_token_ids, [1]);
        dir.write("config.json", r#"{"eos_token_id": 10}"#);
        assert!(dir.read().is_err(), "an id past the vocabulary");
    }

    #[test]
    fn bos_and_pad_come_from_the_tokenizer_first() {
        let text = r#"{"bos_token": {"content": "<s>"}, "pad_token": null}"#;
        let dir = Dir::new(r#"{"bos_token_id": 2, "pad_token_id": 2}"#, text);
        let side = dir.read().unwrap();
        assert_eq!((side.config.bos_token_id, side.config.pad_token_id), (Some(0), None));
        dir.write(TOKENIZER_CONFIG, "{}");
        let side = dir.read().unwrap();
        assert_eq!((side.config.bos_token_id, side.config.pad_token_id), (Some(2), Some(2)));
        dir.write("config.json", r#"{"bos_token_id": 2, "pad_token_id": -1}"#);
        let side = dir.read().unwrap();
        assert_eq!((side.config.pad_token_id, side.notes.len()), (None, 1));
        assert!(side.notes[0].contains("pad_token_id"));
    }

    #[test]
    fn chat_template_forms() {
        let dir = Dir::new("{}", r#"{"chat_template": "T"}"#);
        let template = |dir: &Dir| dir.read().unwrap().config.chat_template;
        assert_eq!(template(&dir).as_deref(), Some("T"));
        dir.write(CHAT_TEMPLATE, " \n");
        assert_eq!(template(&dir).as_deref(), Some("T"));
        dir.write(CHAT_TEMPLATE, "J\n");
        assert_eq!(template(&dir).as_deref(), Some("J\n"));
        std::fs::remove_file(dir.0.path().join(CHAT_TEMPLATE)).unwrap();
        let named =
            r#"{"chat_template": [{"name": "tool_use", "template": "U"}, {"name": "default", "template": "D"}]}"#;
        dir.write(TOKENIZER_CONFIG, named);
        assert_eq!(template(&dir).as_deref(), Some("D"));
        dir.write(TOKENIZER_CONFIG, r#"{"chat_template": 7}"#);
        assert!(dir.read().is_err());
    }

    #[test]
    fn missing_and_broken_tokenizers_are_named() {
        let dir = Dir::new("{}", "{}");
        dir.write(TOKENIZER, "{}");
        let text = dir.read().err().unwrap().to_string();
        assert!(text.contains(TOKENIZER), "{text}");
        std::fs::remove_file(dir.0.path().join(TOKENIZER)).unwrap();
        let text = dir.read().err().unwrap().to_string();
        assert!(text.starts_with("tokenizer.json is missing; "), "{text}");
    }
}
