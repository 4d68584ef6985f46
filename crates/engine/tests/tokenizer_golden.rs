//! Tokenizers against the golden files: encoding, decoding, streaming.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Mismatches, bytes, check_stream, check_tokenizer, fixture, json};
use cortiq_engine::tokenizer::MAX_WHITESPACE_RUN;
use cortiq_engine::{Detokenizer, EngineError, SpecialTokens, Tokenizer};
use proptest::prelude::*;

const NAMES: [&str; 6] = ["llama_spm", "gemma_spm", "qwen_bpe", "qwen35_bpe", "llama3_bpe", "unigram_bf"];

fn load(name: &str) -> Tokenizer {
    let path = fixture(&format!("tokenizers/{name}/tokenizer.json"));
    Tokenizer::from_json(&bytes(&path)).unwrap()
}

fn check_golden(name: &str) {
    let golden = json(&fixture(&format!("tokenizers/{name}/golden.json")));
    check_tokenizer(&load(name), &golden);
}

#[test]
fn llama_spm() {
    check_golden("llama_spm");
}

#[test]
fn gemma_spm() {
    check_golden("gemma_spm");
}

#[test]
fn qwen_bpe() {
    check_golden("qwen_bpe");
}

#[test]
fn qwen35_bpe() {
    check_golden("qwen35_bpe");
}

#[test]
fn llama3_bpe() {
    check_golden("llama3_bpe");
}

#[test]
fn unigram_bf() {
    check_golden("unigram_bf");
}

#[test]
fn every_model_fixture_has_a_tokenizer_that_loads() {
    let mut loaded = 0;
    for entry in std::fs::read_dir(fixture("models")).unwrap() {
        let path = entry.unwrap().path().join("tokenizer.json");
        Tokenizer::from_json(&bytes(&path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        loaded += 1;
    }
    assert!(loaded >= 20, "{loaded}");
}

#[test]
fn ids_and_tokens_are_looked_up() {
    let tokenizer = load("qwen_bpe");
    assert_eq!(tokenizer.id_of("<|im_end|>"), Some(722));
    assert_eq!(tokenizer.token_of(722).as_deref(), Some("<|im_end|>"));
    assert_eq!(tokenizer.id_of("no such token"), None);
    assert_eq!(tokenizer.token_of(100_000), None);
    let special: Vec<bool> = (720..728).map(|id| tokenizer.is_special(id)).collect();
    assert_eq!(special, [true, true, true, false, false, false, false, false]);
    // Ids beyond the tokenizer are padding of the model and have no text.
    assert_eq!(tokenizer.decode(&[100_000, 39], false).unwrap(), "H");
}

#[test]
fn special_tokens_in_text_can_stay_text() {
    for name in NAMES {
        let tokenizer = load(name);
        let special = (0..tokenizer.vocab_size() as u32)
            .filter(|&id| tokenizer.is_special(id))
            .filter_map(|id| tokenizer.token_of(id));
        let mut seen = 0;
        for token in special {
            let text = format!("a{token}b {token}{token}");
            let id = tokenizer.id_of(&token).unwrap();
            assert!(tokenizer.encode(&text, false).unwrap().contains(&id), "{name} {token}");
            match tokenizer.encode_with(&text, false, SpecialTokens::AsText) {
                Ok(ids) => {
                    assert!(!ids.contains(&id), "{name} {token}");
                    assert_eq!(tokenizer.decode(&ids, true).unwrap(), text, "{name} {token}");
                }
                // Pieces of a Unigram model.
                Err(EngineError::SpecialTokenInText(found)) => {
                    assert_eq!((name, found), ("unigram_bf", token.clone()));
                }
                Err(e) => panic!("{name} {token}: {e}"),
            }
            seen += 1;
        }
        assert!(seen > 0, "{name}");
        // Text without special tokens is the same in both modes, and so are added ones.
        for text in ["Hello, wörld! 12", " x  y\n"] {
            for add in [false, true] {
                let parsed = tokenizer.encode(text, add).unwrap();
                let as_text = tokenizer.encode_with(text, add, SpecialTokens::AsText);
                assert_eq!(as_text.unwrap(), parsed, "{name} {text:?}");
            }
        }
    }
}

/// The longest run that is accepted is split as shorter ones are: its last space goes with the word.
#[test]
fn long_white_space_is_split_or_refused() {
    let tokenizer = load("qwen_bpe");
    let text = |spaces: usize| format!("a{}b c", " ".repeat(spaces));
    let words = tokenizer.encode(" b c", false).unwrap();
    for spaces in [2, 100, MAX_WHITESPACE_RUN] {
        let ids = tokenizer.encode(&text(spaces), false).unwrap();
        assert!(ids.ends_with(&words), "{spaces}: {:?}", ids.last_chunk::<5>());
    }
    match tokenizer.encode(&text(MAX_WHITESPACE_RUN + 1), false) {
        Err(EngineError::Encode(reason)) => assert!(reason.contains("white-space"), "{reason}"),
        other => panic!("{:?}", other.map(|ids| ids.len())),
    }
}

/// Characters come out as soon as they are complete, and not before.
#[test]
fn pieces_are_whole_characters() {
    let tokenizer = load("qwen_bpe");
    let ids = tokenizer.encode("a叫😀b", false).unwrap();
    let mut stream = Detokenizer::new(&tokenizer, false);
    let pieces: Vec<String> = ids.iter().filter_map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(pieces, ["a", "叫", "😀", "b"]);
    assert!(ids.len() > pieces.len());
    assert_eq!(stream.flush().unwrap(), "");

    // A character that never ends is one U+FFFD at the end.
    for &id in &ids[..2] {
        stream.push(id).unwrap();
    }
    assert_eq!(stream.flush().unwrap(), "\u{FFFD}");
}

/// The space that the vocabulary puts before the first word is not text, later ones are.
#[test]
fn leading_space_is_only_the_first() {
    let tokenizer = load("llama_spm");
    let ids = tokenizer.encode("the the", false).unwrap();
    let mut stream = Detokenizer::new(&tokenizer, true);
    let pieces: Vec<String> = ids.iter().filter_map(|&id| stream.push(id).unwrap()).collect();
    assert_eq!(pieces.concat(), "the the");
    assert!(pieces.iter().any(|p| p.starts_with(' ')), "{pieces:?}");
}

/// A long sequence costs what many short ones cost: nothing grows but the answer.
#[test]
fn nothing_is_kept_of_finished_text() {
    for name in NAMES {
        let tokenizer = load(name);
        let ids = tokenizer.encode("word and word\n", false).unwrap();
        let mut stream = Detokenizer::new(&tokenizer, false);
        let mut sizes = Vec::new();
        for round in 0..200 {
            for &id in &ids {
                stream.push(id).unwrap();
            }
            if round % 100 == 99 {
                sizes.push(format!("{stream:?}").len());
            }
        }
        assert_eq!(sizes[0], sizes[1], "{name}");
    }
}

proptest! {
    #[test]
    fn any_ids_stream_as_they_decode(
        name in prop::sample::select(NAMES.as_slice()),
        // Low ids are bytes and special tokens, and come often.
        ids in prop::collection::vec(prop_oneof![0u32..300, 0u32..1000, 970u32..1100], 0..40),
    ) {
        let mut wrong = Mismatches::default();
        check_stream(&mut wrong, &load(name), &ids);
        wrong.finish(2);
    }
}
