//! The token list of a GGUF file with its kinds, scores and special ids.

use std::collections::HashMap;

use super::super::GgufError;
use super::super::metadata::{Metadata, required};
use super::{KEY_SCORES, KEY_TOKENS, KEY_TYPES};

/// Kind of a token, with its number in `tokenizer.ggml.token_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenKind {
    /// 1 (and 0, undefined): an ordinary piece.
    Normal,
    /// 2: stands for text that has no token.
    Unknown,
    /// 3: never comes from text, only from its own spelling.
    Control,
    /// 4: cut out of the text before the model runs.
    UserDefined,
    /// 5: a place holder.
    Unused,
    /// 6: one byte, `<0xNN>`.
    Byte,
}

impl TokenKind {
    fn from_id(id: i64) -> Option<Self> {
        Some(match id {
            0 | 1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// Ids of the special tokens that the metadata names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpecialIds {
    /// Beginning of a text.
    pub bos: Option<u32>,
    /// End of a text.
    pub eos: Option<u32>,
    /// End of a turn.
    pub eot: Option<u32>,
    /// End of a message.
    pub eom: Option<u32>,
    /// Unknown text.
    pub unk: Option<u32>,
    /// Padding.
    pub pad: Option<u32>,
}

impl SpecialIds {
    /// The tokens that end a generation, without repetitions: eos, eot, eom.
    pub fn ends(&self) -> Vec<u32> {
        let mut ends = Vec::new();
        for id in [self.eos, self.eot, self.eom].into_iter().flatten() {
            if !ends.contains(&id) {
                ends.push(id);
            }
        }
        ends
    }

    fn read(metadata: &Metadata, token_count: usize) -> Result<Self, GgufError> {
        let id = |name: &str| {
            let key = format!("tokenizer.ggml.{name}_token_id");
            match metadata.token_id(&key)? {
                Some(id) if id as usize >= token_count => {
                    let reason = format!("{id} is not below the {token_count} tokens");
                    Err(GgufError::bad_key(key, reason))
                }
                id => Ok(id),
            }
        };
        Ok(Self {
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            eom: id("eom")?,
            unk: id("unknown")?,
            pad: id("padding")?,
        })
    }
}

/// The tokens of a file; `kinds` has one entry per token.
pub(super) struct Vocab<'a> {
    pub(super) tokens: Vec<&'a str>,
    pub(super) kinds: Vec<TokenKind>,
    pub(super) special: SpecialIds,
}

impl<'a> Vocab<'a> {
    /// Reads and checks the token list. `sentencepiece_ids` fills absent bos, eos and unknown
    /// ids with 1, 2 and 0 where those tokens are of the fitting kind, as SentencePiece models
    /// number them.
    pub(super) fn read(metadata: &'a Metadata, sentencepiece_ids: bool) -> Result<Self, GgufError> {
        let tokens = required(KEY_TOKENS, metadata.strings(KEY_TOKENS)?)?;
        if tokens.is_empty() {
            return Err(GgufError::bad_key(KEY_TOKENS, "is empty"));
        }
        if u32::try_from(tokens.len()).is_err() {
            return Err(GgufError::bad_key(KEY_TOKENS, "has more than 2^32 tokens"));
        }
        let mut kinds = read_kinds(metadata, tokens.len())?;
        let mut special = SpecialIds::read(metadata, tokens.len())?;
        if sentencepiece_ids {
            let default = |id: u32, kind| (kinds.get(id as usize) == Some(&kind)).then_some(id);
            special.bos = special.bos.or_else(|| default(1, TokenKind::Control));
            special.eos = special.eos.or_else(|| default(2, TokenKind::Control));
            special.unk = special.unk.or_else(|| default(0, TokenKind::Unknown));
        }
        // A token that begins or ends a text is not a piece of text, whatever its kind says.
        for id in special.bos.into_iter().chain(special.ends()) {
            if let Some(kind) = kinds.get_mut(id as usize)
                && *kind != TokenKind::Control
            {
                *kind = TokenKind::Control;
            }
        }
        let vocab = Self { tokens, kinds, special };
        vocab.refuse_duplicates()?;
        Ok(vocab)
    }

    /// The text of token `id`.
    pub(super) fn text(&self, id: u32) -> Option<&'a str> {
        self.tokens.get(id as usize).copied()
    }

    /// All tokens that are not place holders: id, text, kind.
    pub(super) fn used(&self) -> impl Iterator<Item = (u32, &'a str, TokenKind)> {
        self.all().filter(|&(_, _, kind)| kind != TokenKind::Unused)
    }

    /// All tokens: id, text, kind.
    pub(super) fn all(&self) -> impl Iterator<Item = (u32, &'a str, TokenKind)> {
        // The number of tokens fits u32, checked in `read`.
        (0u32..).zip(&self.tokens).zip(&self.kinds).map(|((id, &text), &kind)| (id, text, kind))
    }

    /// The tokens that are cut out of the text before the model runs: id, text, special.
    pub(super) fn added(&self) -> impl Iterator<Item = (u32, &'a str, bool)> {
        self.all().filter(|(_, text, _)| !text.is_empty()).filter_map(|(id, text, kind)| match kind {
            TokenKind::Control | TokenKind::Unknown => Some((id, text, true)),
            TokenKind::UserDefined => Some((id, text, false)),
            TokenKind::Normal | TokenKind::Unused | TokenKind::Byte => None,
        })
    }

    /// The id of the unknown token and its text.
    pub(super) fn unknown(&self) -> Option<(u32, &'a str)> {
        let by_kind = || self.all().find(|t| t.2 == TokenKind::Unknown).map(|(id, _, _)| id);
        let id = self.special.unk.or_else(by_kind)?;
        self.text(id).map(|text| (id, text))
    }

    /// True when there is a token for each of the 256 bytes.
    pub(super) fn has_all_bytes(&self) -> bool {
        let mut seen = [false; 256];
        for (_, text, kind) in self.all() {
            if kind == TokenKind::Byte
                && let Some(byte) = parse_byte_token(text)
            {
                seen[usize::from(byte)] = true;
            }
        }
        seen.iter().all(|&s| s)
    }

    /// The vocabulary object of a BPE model: text to id.
    pub(super) fn to_json_map(&self) -> serde_json::Map<String, serde_json::Value> {
        self.used().map(|(id, text, _)| (text.to_owned(), id.into())).collect()
    }

    /// The score of every token.
    ///
    /// # Errors
    /// When the key is missing, of another length, or holds NaN.
    pub(super) fn scores(&self, metadata: &Metadata) -> Result<Vec<f32>, GgufError> {
        let scores = required(KEY_SCORES, metadata.floats(KEY_SCORES)?)?;
        same_length(KEY_SCORES, scores.len(), self.tokens.len())?;
        if scores.iter().any(|s| s.is_nan()) {
            return Err(GgufError::bad_key(KEY_SCORES, "has a value that is not a number"));
        }
        Ok(scores)
    }

    fn refuse_duplicates(&self) -> Result<(), GgufError> {
        let mut seen = HashMap::new();
        for (id, text, _) in self.used() {
            if let Some(first) = seen.insert(text, id) {
                let reason = format!("tokens {first} and {id} are both `{text}`");
                return Err(GgufError::bad_key(KEY_TOKENS, reason));
            }
        }
        Ok(())
    }
}

fn read_kinds(metadata: &Metadata, count: usize) -> Result<Vec<TokenKind>, GgufError> {
    let Some(ids) = metadata.integers(KEY_TYPES)? else {
        return Ok(vec![TokenKind::Normal; count]);
    };
    same_length(KEY_TYPES, ids.len(), count)?;
    let kind = |(index, &id): (usize, &i64)| {
        TokenKind::from_id(id)
            .ok_or_else(|| GgufError::bad_key(KEY_TYPES, format!("element {index} is {id}, which is no token type")))
    };
    ids.iter().enumerate().map(kind).collect()
}

fn same_length(key: &str, found: usize, tokens: usize) -> Result<(), GgufError> {
    if found == tokens {
        Ok(())
    } else {
        let reason = format!("has {found} elements for {tokens} tokens");
        Err(GgufError::bad_key(key, reason))
    }
}

/// `<0xNN>` with two hexadecimal digits.
fn parse_byte_token(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    if digits.len() == 2 { u8::from_str_radix(digits, 16).ok() } else { None }
}
