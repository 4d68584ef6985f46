//! `tokenizer.ggml.model` = `gpt2`: byte-level BPE with explicit merges.
//!
//! Tokens and merges are spelled in the GPT-2 byte alphabet; how the text is split before the
//! merges run is named by `tokenizer.ggml.pre`, see [`super::pre`].

use serde_json::{Value, json};

use super::super::GgufError;
use super::super::metadata::{Metadata, required};
use super::vocab::Vocab;
use super::{KEY_MERGES, KEY_PRE, Parts, pre};

pub(super) fn parts(metadata: &Metadata, vocab: &Vocab<'_>) -> Result<Parts, GgufError> {
    let name = required(KEY_PRE, metadata.string(KEY_PRE)?)?;
    let rule = pre::find(name)
        .ok_or_else(|| GgufError::unsupported_key(KEY_PRE, name, "its text splitting rule is not known"))?;
    let tokens = vocab.to_json_map();
    let merges = required(KEY_MERGES, metadata.strings(KEY_MERGES)?)?;
    let merges = merges
        .iter()
        .enumerate()
        .map(|(index, merge)| read_merge(index, merge, &tokens))
        .collect::<Result<Vec<Value>, GgufError>>()?;
    let mut notes = Vec::new();
    if name == "default" {
        notes.push(format!("`{KEY_PRE}` is `default`: the splitting rule may not be the model's own"));
    }
    Ok(Parts {
        normalizer: rule.normalizer(),
        pre_tokenizer: rule.pre_tokenizer(),
        decoder: json!({
            "type": "ByteLevel",
            "add_prefix_space": true,
            "trim_offsets": true,
            "use_regex": true,
        }),
        model: json!({
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": rule.whole_words_first,
            "vocab": tokens,
            "merges": merges,
        }),
        add_bos_default: rule.adds_bos,
        add_eos_default: false,
        notes,
    })
}

/// `left right`, separated by the one space that is not the first character.
fn read_merge(index: usize, merge: &str, tokens: &serde_json::Map<String, Value>) -> Result<Value, GgufError> {
    let bad = |reason: &str| GgufError::bad_key(KEY_MERGES, format!("element {index}, `{merge}`, {reason}"));
    let (left, right) = merge.split_once(' ').ok_or_else(|| bad("is not two pieces"))?;
    if left.is_empty() || right.is_empty() || right.contains(' ') {
        return Err(bad("is not two pieces"));
    }
    let joined = format!("{left}{right}");
    if [left, right, &joined].iter().any(|&piece| !tokens.contains_key(piece)) {
        return Err(bad("has a piece that is no token"));
    }
    Ok(json!([left, right]))
}
