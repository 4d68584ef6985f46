//! The tokenizer of a model: text to token ids and back, exactly as its `tokenizer.json` says.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use tokenizers::{Decoder, DecoderWrapper};

use crate::EngineError;

/// What happens to the spelling of a special token (`<|im_end|>`, `</s>`) inside a text.
///
/// Only tokens that `tokenizer.json` marks `special` are concerned. Other added tokens (often `<think>`,
/// `<tool_call>`) are ordinary vocabulary and are matched in both modes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum SpecialTokens {
    /// It becomes the special token, as in Hugging Face's libraries. Right for text made by a chat template.
    #[default]
    Parse,
    /// It stays text. Right for text of users which must not forge the borders of messages.
    AsText,
}

/// Longest run of white space in a text, in characters. The pattern of byte-level vocabularies looks ahead
/// at the end of such a run; at a million characters the regex engine gives up, and the tokenizer
/// library then leaves the rest of the text unsplit without a word.
pub const MAX_WHITESPACE_RUN: usize = 400_000;

/// A tokenizer made from a `tokenizer.json`. Cloning is cheap: the clones share one vocabulary.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    parsing: tokenizers::Tokenizer,
    /// The same with special tokens switched off while encoding; made when first asked for.
    as_text: OnceLock<tokenizers::Tokenizer>,
    vocab_size: usize,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocab_size", &self.inner.vocab_size).finish_non_exhaustive()
    }
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    ///
    /// Truncation and padding declared in the file are for training batches and are switched off: a
    /// prompt is never cut in silence.
    ///
    /// # Errors
    /// [`EngineError::Tokenizer`] with the reason, for bytes that are no valid `tokenizer.json`.
    pub fn from_json(json: &[u8]) -> Result<Self, EngineError> {
        let parsing = guard("reading it", || {
            let mut tokenizer = tokenizers::Tokenizer::from_bytes(json)?;
            tokenizer.with_truncation(None)?.with_padding(None);
            Ok(tokenizer)
        })
        .map_err(EngineError::Tokenizer)?;
        let vocab_size = parsing.get_vocab_size(true);
        if vocab_size == 0 {
            return Err(EngineError::Tokenizer("the vocabulary is empty".into()));
        }
        let inner = Inner { parsing, as_text: OnceLock::new(), vocab_size };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Token ids of `text`; `add_special` adds what the post-processor adds (the BOS token of many models).
    ///
    /// # Errors
    /// [`EngineError::Encode`] where the model of the tokenizer cannot spell the text, or for white space
    /// beyond [`MAX_WHITESPACE_RUN`].
    pub fn encode(&self, text: &str, add_special: bool) -> Result<Vec<u32>, EngineError> {
        self.encode_with(text, add_special, SpecialTokens::Parse)
    }

    /// Like [`Tokenizer::encode`], with a choice of what special tokens written in the text mean.
    ///
    /// # Errors
    /// [`EngineError::Encode`] as above; [`EngineError::SpecialTokenInText`] with
    /// [`SpecialTokens::AsText`] when the vocabulary has no other spelling for the text of a special
    /// token (Unigram models may have them as ordinary pieces).
    pub fn encode_with(&self, text: &str, add_special: bool, special: SpecialTokens) -> Result<Vec<u32>, EngineError> {
        match special {
            SpecialTokens::Parse => encode(&self.inner.parsing, text, add_special),
            SpecialTokens::AsText => {
                let tokenizer = self.inner.as_text.get_or_init(|| {
                    let mut tokenizer = self.inner.parsing.clone();
                    tokenizer.set_encode_special_tokens(true);
                    tokenizer
                });
                self.refuse_special(text, &encode(tokenizer, text, false)?)?;
                encode(tokenizer, text, add_special)
            }
        }
    }

    /// Fails if `ids` has a special token whose spelling is in `text`. An unknown-token id that the text
    /// does not spell is what the model gives for characters outside its vocabulary, and passes.
    fn refuse_special(&self, text: &str, ids: &[u32]) -> Result<(), EngineError> {
        let forged = ids.iter().find_map(|&id| {
            let token = self.token_of(id).filter(|_| self.is_special(id))?;
            text.contains(&token).then_some(token)
        });
        match forged {
            Some(token) => Err(EngineError::SpecialTokenInText(token)),
            None => Ok(()),
        }
    }

    /// Text of `ids`. Bytes that are no UTF-8 become U+FFFD; ids without a token give nothing (model
    /// vocabularies are often padded beyond the tokenizer's). `skip_special` leaves special tokens out.
    ///
    /// # Errors
    /// [`EngineError::Decode`] where the decoder of the tokenizer fails.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> Result<String, EngineError> {
        let tokens = ids.iter().filter_map(|&id| self.visible_token(id, skip_special)).collect();
        self.join(tokens)
    }

    /// Number of tokens, added ones included.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab_size
    }

    /// The id of a token written as in `tokenizer.json`.
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.parsing.token_to_id(token)
    }

    /// The token of an id in the vocabulary's own spelling (`Ġthe`, `▁the`, `<0x0A>`), not as text.
    pub fn token_of(&self, id: u32) -> Option<String> {
        self.inner.parsing.id_to_token(id)
    }

    /// Whether `tokenizer.json` marks the token as special, so that decoding can leave it out.
    pub fn is_special(&self, id: u32) -> bool {
        self.token_of(id).is_some_and(|token| self.inner.parsing.get_added_vocabulary().is_special_token(&token))
    }

    /// The token of `id` if decoding shows it.
    pub(crate) fn visible_token(&self, id: u32, skip_special: bool) -> Option<String> {
        let token = self.token_of(id)?;
        let hidden = skip_special && self.inner.parsing.get_added_vocabulary().is_special_token(&token);
        (!hidden).then_some(token)
    }

    /// Runs the decoder over tokens in the vocabulary's spelling.
    pub(crate) fn join(&self, tokens: Vec<String>) -> Result<String, EngineError> {
        if tokens.is_empty() {
            return Ok(String::new());
        }
        match self.decoder() {
            Some(decoder) => guard("decoding", || decoder.decode(tokens)).map_err(EngineError::Decode),
            None => Ok(tokens.join(" ")),
        }
    }

    pub(crate) fn decoder(&self) -> Option<&DecoderWrapper> {
        self.inner.parsing.get_decoder()
    }
}

fn encode(tokenizer: &tokenizers::Tokenizer, text: &str, add_special: bool) -> Result<Vec<u32>, EngineError> {
    if has_long_whitespace(text) {
        return Err(EngineError::Encode(format!(
            "it has more than {MAX_WHITESPACE_RUN} white-space characters in a row"
        )));
    }
    let encoding = guard("encoding", || tokenizer.encode_fast(text, add_special)).map_err(EngineError::Encode)?;
    Ok(encoding.get_ids().to_vec())
}

fn has_long_whitespace(text: &str) -> bool {
    if text.len() <= MAX_WHITESPACE_RUN {
        return false;
    }
    let mut run = 0;
    text.chars().any(|c| {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        run > MAX_WHITESPACE_RUN
    })
}

/// Turns a panic of the tokenizer library into an error: `tokenizer.json` comes from outside, and the
/// library does not check all of it.
fn guard<T>(doing: &str, f: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err(format!("the tokenizer library panicked while {doing}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BROKEN: &[(&str, &[u8])] = &[
        ("no JSON", b"{"),
        ("empty", b""),
        ("no model", br#"{"version":"1.0","added_tokens":[]}"#),
        (
            "unknown model",
            br#"{"version":"1.0","added_tokens":[],"model":{"type":"Markov","vocab":{}}}"#,
        ),
        (
            "merge of an unknown token",
            br#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{"a":0},"merges":["a b"]}}"#,
        ),
        (
            "empty vocabulary",
            br#"{"version":"1.0","added_tokens":[],"model":{"type":"BPE","vocab":{},"merges":[]}}"#,
        ),
        (
            "broken regex",
            br#"{"version":"1.0","added_tokens":[],"pre_tokenizer":{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated","invert":false},"model":{"type":"BPE","vocab":{"a":0},"merges":[]}}"#,
        ),
    ];

    #[test]
    fn broken_files_are_refused_with_a_reason() {
        for (name, json) in BROKEN {
            match Tokenizer::from_json(json) {
                Err(EngineError::Tokenizer(reason)) => {
                    assert!(!reason.is_empty(), "{name}: no reason");
                    assert!(!reason.contains("panicked"), "{name}: {reason}");
                }
                other => panic!("{name}: {other:?}"),
            }
        }
    }

    #[test]
    fn truncation_and_padding_of_the_file_are_ignored() {
        let json = br#"{"version":"1.0","added_tokens":[],
            "truncation":{"direction":"Right","max_length":2,"strategy":"LongestFirst","stride":0},
            "padding":{"strategy":{"Fixed":5},"direction":"Right","pad_to_multiple_of":null,"pad_id":1,"pad_type_id":0,"pad_token":"b"},
            "model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":[]}}"#;
        let tokenizer = Tokenizer::from_json(json).unwrap();
        assert_eq!(tokenizer.encode("aaa", true).unwrap(), [0, 0, 0]);
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let result: Result<(), String> = guard("testing", || panic!("on purpose"));
        assert_eq!(result.unwrap_err(), "the tokenizer library panicked while testing");
    }
}
