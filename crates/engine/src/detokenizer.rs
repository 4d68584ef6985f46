//! Incremental decoding: token ids in, text out, each piece as soon as it cannot change any more.
//!
//! The pieces of a sequence put together are exactly what [`Tokenizer::decode`] gives for all its ids.

use tokenizers::DecoderWrapper;

use crate::{EngineError, Tokenizer};

/// Turns the tokens of one sequence into text while they arrive.
///
/// A token costs the same however long the sequence is: only what may still change is kept.
#[derive(Debug, Clone)]
pub struct Detokenizer {
    tokenizer: Tokenizer,
    skip_special: bool,
    state: State,
}

/// What is held back, by the kind of the tokenizer's decoder.
#[derive(Debug, Clone)]
enum State {
    /// Byte-level vocabularies: bytes that may be the start of a UTF-8 character (at most three).
    Bytes(Vec<u8>),
    /// Decoders that treat each token on its own, but for the first token and for runs of `<0xNN>` tokens.
    Pieces { held: Vec<String>, started: bool },
    /// Decoders whose last token changes earlier text: nothing is certain before the end.
    Whole(Vec<String>),
}

/// Stands for the text before a piece, so that the decoder does not treat the piece as the first one.
const CONTEXT: &str = "a";

impl Detokenizer {
    /// Starts a sequence; `skip_special` leaves special tokens out of the text.
    pub fn new(tokenizer: &Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer: tokenizer.clone(), skip_special, state: State::for_decoder(tokenizer.decoder()) }
    }

    /// Takes the next token; gives the text that is complete by now, `None` where there is none yet.
    ///
    /// Ids without a token and (if so asked) special tokens give nothing, as in [`Tokenizer::decode`].
    ///
    /// # Errors
    /// [`EngineError::Decode`] where the decoder of the tokenizer fails.
    pub fn push(&mut self, id: u32) -> Result<Option<String>, EngineError> {
        let Some(token) = self.tokenizer.visible_token(id, self.skip_special) else {
            return Ok(None);
        };
        let text = match &mut self.state {
            State::Bytes(held) => {
                append_bytes(held, &token);
                take_complete(held)
            }
            State::Pieces { held, started } => {
                let is_byte = is_byte_token(&token);
                held.push(token);
                // A run of byte tokens is one unit: whether its first bytes are a character or U+FFFD
                // depends on all of it.
                if is_byte {
                    return Ok(None);
                }
                decode_pieces(&self.tokenizer, held, started)?
            }
            State::Whole(held) => {
                held.push(token);
                return Ok(None);
            }
        };
        Ok((!text.is_empty()).then_some(text))
    }

    /// Ends the sequence: gives the text that was held back, incomplete characters as U+FFFD.
    /// The detokenizer is then as new.
    ///
    /// # Errors
    /// [`EngineError::Decode`] where the decoder of the tokenizer fails.
    pub fn flush(&mut self) -> Result<String, EngineError> {
        let fresh = State::for_decoder(self.tokenizer.decoder());
        match std::mem::replace(&mut self.state, fresh) {
            State::Bytes(held) => Ok(String::from_utf8_lossy(&held).into_owned()),
            State::Pieces { mut held, mut started } => decode_pieces(&self.tokenizer, &mut held, &mut started),
            State::Whole(held) => self.tokenizer.join(held),
        }
    }
}

impl State {
    fn for_decoder(decoder: Option<&DecoderWrapper>) -> Self {
        let chain = match decoder {
            // Tokens joined with spaces.
            None => &[],
            Some(DecoderWrapper::Sequence(sequence)) => sequence.get_decoders(),
            Some(single) => std::slice::from_ref(single),
        };
        if is_byte_level(chain) {
            Self::Bytes(Vec::new())
        } else if is_piecewise(chain) {
            Self::Pieces { held: Vec::new(), started: false }
        } else {
            Self::Whole(Vec::new())
        }
    }
}

fn is_byte_level(chain: &[DecoderWrapper]) -> bool {
    match chain {
        [DecoderWrapper::ByteLevel(_), rest @ ..] => rest.iter().all(|d| matches!(d, DecoderWrapper::Fuse(_))),
        _ => false,
    }
}

/// Whether every decoder of the chain works token by token, and after `Fuse` only at the start of the text.
fn is_piecewise(chain: &[DecoderWrapper]) -> bool {
    let mut fused = false;
    chain.iter().all(|decoder| match decoder {
        DecoderWrapper::ByteFallback(_) | DecoderWrapper::Replace(_) => !fused,
        DecoderWrapper::Metaspace(_) | DecoderWrapper::WordPiece(_) => !fused,
        DecoderWrapper::Strip(strip) => strip.stop == 0,
        DecoderWrapper::Fuse(_) => {
            fused = true;
            true
        }
        _ => false,
    })
}

/// Decodes and empties `held`. As long as the sequence has no text at all, `held` stays, because the
/// first visible token may lose its leading space.
fn decode_pieces(tokenizer: &Tokenizer, held: &mut Vec<String>, started: &mut bool) -> Result<String, EngineError> {
    if held.is_empty() {
        return Ok(String::new());
    }
    if !*started {
        let text = tokenizer.join(held.clone())?;
        if !text.is_empty() {
            *started = true;
            held.clear();
        }
        return Ok(text);
    }
    let context = tokenizer.join(vec![CONTEXT.to_owned()])?;
    let mut tokens = Vec::with_capacity(held.len() + 1);
    tokens.push(CONTEXT.to_owned());
    tokens.append(held);
    let text = tokenizer.join(tokens)?;
    match text.strip_prefix(&context) {
        Some(piece) => Ok(piece.to_owned()),
        None => Err(EngineError::Decode(format!(
            "the decoder turns {CONTEXT:?} into {context:?} alone but not before other tokens"
        ))),
    }
}

/// Tokens such as `<0x0A>`, by the rule of the `ByteFallback` decoder.
fn is_byte_token(token: &str) -> bool {
    token
        .strip_prefix("<0x")
        .and_then(|rest| rest.strip_suffix('>'))
        .is_some_and(|hex| hex.len() == 2 && u8::from_str_radix(hex, 16).is_ok())
}

/// Appends the bytes a byte-level token stands for; a token with any character outside the byte
/// alphabet (an added token) is its own text.
fn append_bytes(out: &mut Vec<u8>, token: &str) {
    let start = out.len();
    for c in token.chars() {
        match byte_of(c) {
            Some(byte) => out.push(byte),
            None => {
                out.truncate(start);
                out.extend_from_slice(token.as_bytes());
                return;
            }
        }
    }
}

/// The byte a character of the byte-level alphabet stands for: printable Latin-1 characters are
/// themselves, the other 68 bytes are numbered upwards from U+0100 (GPT-2's `bytes_to_unicode`).
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let byte = match code {
        0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7F,
        0x143 => 0xAD,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

/// Takes all text from `bytes` except a trailing incomplete character, which stays.
fn take_complete(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut kept = Vec::new();
    let mut chunks = bytes.utf8_chunks().peekable();
    while let Some(chunk) = chunks.next() {
        text.push_str(chunk.valid());
        if chunk.invalid().is_empty() {
            continue;
        }
        if chunks.peek().is_none() && is_incomplete(chunk.invalid()) {
            kept.extend_from_slice(chunk.invalid());
        } else {
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }
    *bytes = kept;
    text
}

/// Whether more bytes could make a character of these.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|e| e.valid_up_to() == 0 && e.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_alphabet_is_a_bijection() {
        let mut seen = [false; 256];
        for c in (0..0x400).filter_map(char::from_u32) {
            if let Some(byte) = byte_of(c) {
                assert!(!seen[usize::from(byte)], "{c:?} repeats byte {byte}");
                seen[usize::from(byte)] = true;
            }
        }
        assert!(seen.iter().all(|&s| s));
        let cases = [('Ġ', b' '), ('Ċ', b'\n'), ('Ā', 0), ('ġ', 0x7F), ('ł', 0xA0), ('Ń', 0xAD)];
        for (c, byte) in cases {
            assert_eq!(byte_of(c), Some(byte), "{c}");
        }
    }

    #[test]
    fn complete_text_is_taken_and_the_rest_stays() {
        let cases: &[(&[u8], &str, &[u8])] = &[
            (b"ab", "ab", b""),
            (b"a\xE5\x8F", "a", b"\xE5\x8F"),
            (b"\xE5\x8F\xAB", "叫", b""),
            (b"\xE5a", "\u{FFFD}a", b""),
            (b"\xFF", "\u{FFFD}", b""),
            (b"\x80\xF0\x9F\x98", "\u{FFFD}", b"\xF0\x9F\x98"),
            // No character starts with ED A0: nothing to wait for.
            (b"\xED\xA0", "\u{FFFD}\u{FFFD}", b""),
        ];
        for (input, text, rest) in cases {
            let mut bytes = input.to_vec();
            assert_eq!(take_complete(&mut bytes), *text, "{input:x?}");
            assert_eq!(bytes, *rest, "{input:x?}");
        }
    }

    #[test]
    fn byte_tokens() {
        for token in ["<0x0A>", "<0xff>"] {
            assert!(is_byte_token(token), "{token}");
        }
        for token in ["<0x0>", "<0x00A>", "0x0A", "<0xGG>", "<0xé>", "a"] {
            assert!(!is_byte_token(token), "{token}");
        }
    }

    /// A tokenizer over the given tokens with a decoder in JSON.
    fn tokenizer(tokens: &[&str], decoder: &str) -> Tokenizer {
        let vocab: serde_json::Map<_, _> =
            tokens.iter().enumerate().map(|(id, t)| ((*t).to_owned(), id.into())).collect();
        let json = format!(
            r#"{{"version":"1.0","added_tokens":[],"decoder":{decoder},
                "model":{{"type":"WordLevel","vocab":{},"unk_token":"{}"}}}}"#,
            serde_json::Value::Object(vocab),
            tokens[0],
        );
        Tokenizer::from_json(json.as_bytes()).unwrap()
    }

    #[test]
    fn all_decoder_kinds_give_the_text_of_a_full_decode() {
        let strip2 =
            r#"{"type":"Sequence","decoders":[{"type":"Fuse"},{"type":"Strip","content":"_","start":2,"stop":0}]}"#;
        let decoders = [
            "null",
            r#"{"type":"WordPiece","prefix":"\#\#","cleanup":true}"#,
            r#"{"type":"BPEDecoder","suffix":"</w>"}"#,
            r#"{"type":"CTC","pad_token":"x","word_delimiter_token":"_","cleanup":true}"#,
            r#"{"type":"Metaspace","replacement":"_","prepend_scheme":"always","split":true}"#,
            r#"{"type":"Strip","content":"y","start":0,"stop":1}"#,
            strip2,
        ];
        let tokens = ["_", "x", "y</w>", "##z", "_x", "<0xE5>", ".", "__y", "é"];
        for decoder in decoders {
            let decoder = decoder.replace(r"\#", "#");
            let tokenizer = tokenizer(&tokens, &decoder);
            let mut next = 12345u32;
            for length in 0..60 {
                let ids: Vec<u32> = (0..length % 12)
                    .map(|_| {
                        next = next.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (next >> 16) % 10
                    })
                    .collect();
                let mut stream = Detokenizer::new(&tokenizer, false);
                let mut text = String::new();
                for &id in &ids {
                    text.extend(stream.push(id).unwrap());
                }
                text.push_str(&stream.flush().unwrap());
                assert_eq!(text, tokenizer.decode(&ids, false).unwrap(), "{decoder} {ids:?}");
            }
        }
    }
}
