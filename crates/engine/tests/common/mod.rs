//! Golden files of tokenizers and chat templates, and the checks against them.
#![allow(dead_code)] // Each test binary uses a part.

use std::path::{Path, PathBuf};

use cortiq_engine::{ChatRequest, ChatTemplate, Detokenizer, EngineError, Tokenizer};
use serde_json::Value;

/// A path inside the repository's `fixtures` folder.
pub fn fixture(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(path)
}

pub fn bytes(path: &Path) -> Vec<u8> {
    std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn json(path: &Path) -> Value {
    serde_json::from_slice(&bytes(path)).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub fn ids(value: &Value) -> Vec<u32> {
    let list = value.as_array().expect("a list of ids");
    list.iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

/// Counts mismatches and shows the first ones.
#[derive(Default)]
pub struct Mismatches {
    shown: Vec<String>,
    count: usize,
    checks: usize,
}

impl Mismatches {
    pub fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, got: T, expected: T) {
        self.checks += 1;
        if got != expected {
            self.count += 1;
            if self.shown.len() < 5 {
                self.shown.push(format!("{what}\n     got {got:?}\nexpected {expected:?}"));
            }
        }
    }

    pub fn finish(self, at_least: usize) {
        assert_eq!(self.count, 0, "of {}:\n{}", self.checks, self.shown.join("\n"));
        assert!(self.checks >= at_least, "only {} checks were made", self.checks);
    }
}

/// Checks every case of a tokenizer's golden file, and that streaming gives the same text.
pub fn check_tokenizer(tokenizer: &Tokenizer, golden: &Value) {
    let mut wrong = Mismatches::default();
    let size = golden["vocab_size_with_added"].as_u64().unwrap();
    wrong.check("vocabulary", tokenizer.vocab_size() as u64, size);
    for case in golden["encode"].as_array().unwrap() {
        let text = case["text"].as_str().unwrap();
        let plain = tokenizer.encode(text, false).unwrap();
        let special = tokenizer.encode(text, true).unwrap();
        check_text(&mut wrong, tokenizer, &plain, case);
        // The golden tokens of added tokens include the white space that they swallow.
        let tokens: Vec<String> = plain.iter().map(|&id| tokenizer.token_of(id).unwrap().trim().to_owned()).collect();
        let expected = case["tokens"].as_array().unwrap().iter();
        let expected = expected.map(|t| t.as_str().unwrap().trim().to_owned());
        wrong.check(&format!("tokens of {text:?}"), tokens, expected.collect());
        wrong.check(&format!("ids of {text:?}"), plain, ids(&case["ids"]));
        check_stream(&mut wrong, tokenizer, &special);
        wrong.check(&format!("ids with special of {text:?}"), special, ids(&case["ids_with_special"]));
    }
    for case in golden["decode"].as_array().unwrap() {
        check_text(&mut wrong, tokenizer, &ids(&case["ids"]), case);
    }
    wrong.finish(275 * 9 + 60 * 4);
}

/// The text of `ids`, decoded at once and piece by piece.
fn check_text(wrong: &mut Mismatches, tokenizer: &Tokenizer, ids: &[u32], case: &Value) {
    for (key, skip) in [("decoded", false), ("decoded_skip_special", true)] {
        let text = tokenizer.decode(ids, skip).unwrap();
        wrong.check(&format!("{key} of {ids:?}"), text.as_str(), case[key].as_str().unwrap());
    }
    check_stream(wrong, tokenizer, ids);
}

/// Streamed pieces put together are the text of a full decode.
pub fn check_stream(wrong: &mut Mismatches, tokenizer: &Tokenizer, ids: &[u32]) {
    for skip in [false, true] {
        let full = tokenizer.decode(ids, skip).unwrap();
        let mut stream = Detokenizer::new(tokenizer, skip);
        let mut text = String::new();
        for &id in ids {
            text.extend(stream.push(id).unwrap());
        }
        text.push_str(&stream.flush().unwrap());
        wrong.check(&format!("stream of {ids:?}, skip {skip}"), text, full);
    }
}

/// Checks every case of a chat golden file: the text and its ids, or the error.
pub fn check_chat(source: &str, tokenizer: &Tokenizer, golden: &Value) {
    let special = golden["special_tokens"].as_object().unwrap();
    let special = special.iter().map(|(name, text)| (name.clone(), text.as_str().unwrap()));
    let template = ChatTemplate::new(source, special).unwrap();
    let mut wrong = Mismatches::default();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let what = format!("{} {}", case["name"], case["options"]);
        let options = &case["options"];
        let known = ["add_generation_prompt", "enable_thinking", "tools"];
        let keys = options.as_object().unwrap().keys();
        assert!(keys.clone().all(|k| known.contains(&k.as_str())), "{what}");
        let got = template.render(&ChatRequest {
            messages: case["messages"].as_array().unwrap(),
            tools: options["tools"].as_array().map(Vec::as_slice),
            add_generation_prompt: options["add_generation_prompt"].as_bool().unwrap(),
            enable_thinking: options["enable_thinking"].as_bool(),
            extra: None,
        });
        match (got, case["error"].as_str()) {
            (Ok(text), None) => {
                let got = tokenizer.encode(&text, false).unwrap();
                wrong.check(&what, text.as_str(), case["text"].as_str().unwrap());
                wrong.check(&what, got, ids(&case["ids"]));
            }
            (Err(EngineError::ChatTemplate { message, .. }), Some(error)) => {
                wrong.check(&what, format!("TemplateError: {message}"), error.to_owned());
            }
            (got, expected) => wrong.check(&what, format!("{got:?}"), format!("{expected:?}")),
        }
    }
    wrong.finish(cases.len());
}
