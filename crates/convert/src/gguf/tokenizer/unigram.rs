//! `tokenizer.ggml.model` = `t5`: SentencePiece Unigram, a best path over piece scores.

use serde_json::{Value, json};

use super::super::GgufError;
use super::super::metadata::{Metadata, required};
use super::sentencepiece::{SPACE_MARK, refuse_charsmap};
use super::vocab::Vocab;
use super::{KEY_ADD_PREFIX, KEY_TRIM_SPACES, Parts};

pub(super) fn parts(metadata: &Metadata, vocab: &Vocab<'_>) -> Result<Parts, GgufError> {
    refuse_charsmap(metadata)?;
    let scores = vocab.scores(metadata)?;
    let pieces: Vec<Value> = vocab.tokens.iter().zip(scores).map(|(text, score)| json!([text, score])).collect();
    let unknown = vocab.unknown().map(|(id, _)| id);
    let unknown = required("tokenizer.ggml.unknown_token_id", unknown)?;
    let prefix = metadata.bool(KEY_ADD_PREFIX)?.unwrap_or(true);
    let trim = metadata.bool(KEY_TRIM_SPACES)?.unwrap_or(false);
    let space_mark = json!({
        "type": "Metaspace",
        "replacement": SPACE_MARK,
        "prepend_scheme": if prefix { "always" } else { "never" },
        "split": true,
    });
    let normalizer = if trim {
        json!({"type": "Sequence", "normalizers": [
            {"type": "Strip", "strip_left": true, "strip_right": true},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        ]})
    } else {
        Value::Null
    };
    Ok(Parts {
        normalizer,
        pre_tokenizer: space_mark.clone(),
        decoder: json!({"type": "Sequence", "decoders": [{"type": "ByteFallback"}, space_mark]}),
        model: json!({
            "type": "Unigram",
            "unk_id": unknown,
            "byte_fallback": vocab.has_all_bytes(),
            "vocab": pieces,
        }),
        add_bos_default: false,
        add_eos_default: true,
        notes: Vec::new(),
    })
}
