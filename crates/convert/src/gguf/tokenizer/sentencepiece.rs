//! `tokenizer.ggml.model` = `llama`: SentencePiece BPE, where a piece has a score but merges are
//! not stored.
//!
//! SentencePiece joins, again and again, the adjacent pair whose concatenation is the piece with
//! the highest score. The same is expressed by ranked merges: for each piece, every split into two
//! pieces of the vocabulary is a merge, and merges are ordered by the score of what they make.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::super::GgufError;
use super::super::metadata::Metadata;
use super::vocab::{TokenKind, Vocab};
use super::{KEY_ADD_PREFIX, KEY_CHARSMAP, KEY_SCORES, KEY_TRIM_SPACES, Parts};

/// Stands for a space in SentencePiece pieces.
pub(super) const SPACE_MARK: char = '\u{2581}';

pub(super) fn parts(metadata: &Metadata, vocab: &Vocab<'_>) -> Result<Parts, GgufError> {
    if metadata.bool(KEY_TRIM_SPACES)? == Some(true) {
        return Err(GgufError::unsupported_key(KEY_TRIM_SPACES, true, "for the model `llama`"));
    }
    refuse_charsmap(metadata)?;
    let prefix = metadata.bool(KEY_ADD_PREFIX)?.unwrap_or(true);
    let scores = vocab.scores(metadata)?;
    let merges = merges_from_scores(vocab, &scores);
    if merges.is_empty() {
        return Err(GgufError::bad_key(KEY_SCORES, "no piece is made of two others"));
    }
    Ok(Parts {
        normalizer: normalizer(prefix),
        pre_tokenizer: Value::Null,
        decoder: decoder(prefix),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": vocab.unknown().map(|(_, text)| text),
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": true,
            "byte_fallback": vocab.has_all_bytes(),
            "ignore_merges": false,
            "vocab": vocab.to_json_map(),
            "merges": merges,
        }),
        add_bos_default: true,
        add_eos_default: false,
        notes: Vec::new(),
    })
}

/// A precompiled character map normalises the text in a way that is not rebuilt here.
pub(super) fn refuse_charsmap(metadata: &Metadata) -> Result<(), GgufError> {
    match metadata.raw_bytes(KEY_CHARSMAP)? {
        Some(map) if !map.is_empty() => Err(GgufError::unsupported_key(
            KEY_CHARSMAP,
            format!("{} bytes", map.len()),
            "precompiled character maps are not read",
        )),
        _ => Ok(()),
    }
}

fn normalizer(prefix: bool) -> Value {
    let spaces = json!({
        "type": "Replace",
        "pattern": {"String": " "},
        "content": SPACE_MARK.to_string(),
    });
    if prefix {
        let prepend = json!({"type": "Prepend", "prepend": SPACE_MARK.to_string()});
        json!({"type": "Sequence", "normalizers": [prepend, spaces]})
    } else {
        spaces
    }
}

fn decoder(prefix: bool) -> Value {
    let mut steps = vec![
        json!({
            "type": "Replace",
            "pattern": {"String": SPACE_MARK.to_string()},
            "content": " ",
        }),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}

/// All merges as pairs of texts, best first.
fn merges_from_scores(vocab: &Vocab<'_>, scores: &[f32]) -> Vec<Value> {
    let ids: HashMap<&str, u32> =
        vocab.all().filter(|t| t.2 == TokenKind::Normal).map(|(id, text, _)| (text, id)).collect();
    let mut pieces: Vec<(u32, &str, f32)> = vocab
        .all()
        .zip(scores)
        .filter(|((_, _, kind), _)| *kind == TokenKind::Normal)
        .map(|((id, text, _), &score)| (id, text, score))
        .collect();
    // Stable: pieces of equal score keep the order of their ids.
    pieces.sort_by(|a, b| b.2.total_cmp(&a.2));
    let mut merges = Vec::new();
    for (_, text, _) in pieces {
        for (at, _) in text.char_indices().skip(1) {
            let (left, right) = text.split_at(at);
            if ids.contains_key(left) && ids.contains_key(right) {
                merges.push(json!([left, right]));
            }
        }
    }
    merges
}
