//! Rebuilds a Hugging Face `tokenizer.json` from the `tokenizer.*` keys of a GGUF file.
//!
//! `tokenizer.ggml.model` decides: `gpt2` is byte-level BPE (`byte_level.rs`), `llama` is
//! SentencePiece BPE (`sentencepiece.rs`), `t5` is SentencePiece Unigram (`unigram.rs`). The result
//! is checked by loading it.

mod byte_level;
mod pre;
mod sentencepiece;
mod unigram;
mod vocab;

use serde_json::{Value, json};

use crate::tokenizer_json;

use super::GgufError;
use super::metadata::{Metadata, required};
use vocab::Vocab;
pub use vocab::{SpecialIds, TokenKind};

pub(super) const KEY_MODEL: &str = "tokenizer.ggml.model";
pub(super) const KEY_PRE: &str = "tokenizer.ggml.pre";
pub(super) const KEY_TOKENS: &str = "tokenizer.ggml.tokens";
pub(super) const KEY_TYPES: &str = "tokenizer.ggml.token_type";
pub(super) const KEY_SCORES: &str = "tokenizer.ggml.scores";
pub(super) const KEY_MERGES: &str = "tokenizer.ggml.merges";
pub(super) const KEY_ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
pub(super) const KEY_ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
pub(super) const KEY_ADD_PREFIX: &str = "tokenizer.ggml.add_space_prefix";
pub(super) const KEY_TRIM_SPACES: &str = "tokenizer.ggml.remove_extra_whitespaces";
pub(super) const KEY_CHARSMAP: &str = "tokenizer.ggml.precompiled_charsmap";
const KEY_CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// A rebuilt tokenizer and what the header says about it.
#[derive(Debug)]
pub struct RebuiltTokenizer {
    /// The text of `tokenizer.json`.
    pub json: Vec<u8>,
    /// Ids of the special tokens.
    pub special: SpecialIds,
    /// Jinja source of the chat template.
    pub chat_template: Option<String>,
    /// Number of tokens in the file.
    pub token_count: usize,
    /// What could not be taken over exactly.
    pub notes: Vec<String>,
}

/// The parts of a `tokenizer.json` that differ between the models.
struct Parts {
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    model: Value,
    /// What [`KEY_ADD_BOS`] means when it is absent.
    add_bos_default: bool,
    /// What [`KEY_ADD_EOS`] means when it is absent.
    add_eos_default: bool,
    notes: Vec<String>,
}

/// Rebuilds the tokenizer that the metadata describes.
///
/// # Errors
/// [`GgufError`] naming the key that is missing, malformed or unsupported.
pub fn rebuild(metadata: &Metadata) -> Result<RebuiltTokenizer, GgufError> {
    let model = required(KEY_MODEL, metadata.string(KEY_MODEL)?)?;
    let vocab = Vocab::read(metadata, model == "llama")?;
    let mut parts = match model {
        "gpt2" => byte_level::parts(metadata, &vocab)?,
        "llama" => sentencepiece::parts(metadata, &vocab)?,
        "t5" => unigram::parts(metadata, &vocab)?,
        other => return Err(GgufError::unsupported_key(KEY_MODEL, other, "gpt2, llama and t5 are")),
    };
    let post_processor = post_processor(metadata, &vocab, &mut parts)?;
    let added = added_tokens(&vocab);
    let document = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": parts.normalizer,
        "pre_tokenizer": parts.pre_tokenizer,
        "post_processor": post_processor,
        "decoder": parts.decoder,
        "model": parts.model,
    });
    let json = serde_json::to_vec(&document).map_err(|e| GgufError::Tokenizer { reason: e.to_string() })?;
    check_loads(&json, &vocab)?;
    Ok(RebuiltTokenizer {
        json,
        chat_template: metadata.string(KEY_CHAT_TEMPLATE)?.map(str::to_owned),
        token_count: vocab.tokens.len(),
        special: vocab.special,
        notes: parts.notes,
    })
}

/// Control, unknown and end tokens are special; user-defined tokens are only cut out of the text.
fn added_tokens(vocab: &Vocab<'_>) -> Vec<Value> {
    vocab
        .added()
        .map(|(id, content, special)| {
            json!({
                "id": id,
                "content": content,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": special,
            })
        })
        .collect()
}

/// The post-processor that adds the beginning and end tokens, or null.
fn post_processor(metadata: &Metadata, vocab: &Vocab<'_>, parts: &mut Parts) -> Result<Value, GgufError> {
    let special = &vocab.special;
    let choices = [
        (KEY_ADD_BOS, "tokenizer.ggml.bos_token_id", special.bos, parts.add_bos_default),
        (KEY_ADD_EOS, "tokenizer.ggml.eos_token_id", special.eos, parts.add_eos_default),
    ];
    let mut tokens = [None, None];
    for (slot, (flag_key, id_key, id, default)) in tokens.iter_mut().zip(choices) {
        let asked = metadata.bool(flag_key)?;
        if !asked.unwrap_or(default) {
            continue;
        }
        match id.and_then(|id| vocab.text(id).map(|text| (id, text))) {
            Some(found) => *slot = Some(found),
            None if asked.is_some() => return Err(GgufError::missing_key(id_key)),
            None => parts.notes.push(format!("`{id_key}` is missing, so that token is not added")),
        }
    }
    let [bos, eos] = tokens;
    if bos.is_none() && eos.is_none() {
        return Ok(Value::Null);
    }
    let one = |text: &str, type_id: u32| json!({"SpecialToken": {"id": text, "type_id": type_id}});
    let sequence = |name: &str, type_id: u32| {
        let body = json!({"Sequence": {"id": name, "type_id": type_id}});
        let begin = bos.map(|(_, text)| one(text, type_id));
        let end = eos.map(|(_, text)| one(text, type_id));
        begin.into_iter().chain([body]).chain(end).collect::<Vec<_>>()
    };
    let known: serde_json::Map<String, Value> = [bos, eos]
        .into_iter()
        .flatten()
        .map(|(id, text)| (text.to_owned(), json!({"id": text, "ids": [id], "tokens": [text]})))
        .collect();
    let pair: Vec<Value> = sequence("A", 0).into_iter().chain(sequence("B", 1)).collect();
    Ok(json!({
        "type": "TemplateProcessing",
        "single": sequence("A", 0),
        "pair": pair,
        "special_tokens": known,
    }))
}

/// Loads the document as an engine would and compares the ids of the added tokens.
fn check_loads(json: &[u8], vocab: &Vocab<'_>) -> Result<(), GgufError> {
    let tokenizer = tokenizer_json::load(json).map_err(|reason| GgufError::Tokenizer { reason })?;
    for (id, content, _) in vocab.added() {
        let found = tokenizer.token_to_id(content);
        if found != Some(id) {
            let reason = format!("token `{content}` got id {found:?} instead of {id}");
            return Err(GgufError::Tokenizer { reason });
        }
    }
    Ok(())
}
