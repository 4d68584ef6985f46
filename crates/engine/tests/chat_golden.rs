//! Chat templates against the golden files: the texts `transformers` renders, and their ids.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{bytes, check_chat, fixture, json};
use cortiq_engine::Tokenizer;

fn check(name: &str) {
    let folder = fixture(&format!("tokenizers/{name}"));
    let tokenizer = Tokenizer::from_json(&bytes(&folder.join("tokenizer.json"))).unwrap();
    let config = json(&folder.join("tokenizer_config.json"));
    let source = match config["chat_template"].as_str() {
        Some(source) => source.to_owned(),
        None => String::from_utf8(bytes(&folder.join("chat_template.jinja"))).unwrap(),
    };
    check_chat(&source, &tokenizer, &json(&folder.join("chat_golden.json")));
}

#[test]
fn llama_spm() {
    check("llama_spm");
}

#[test]
fn gemma_spm() {
    check("gemma_spm");
}

#[test]
fn llama3_bpe() {
    check("llama3_bpe");
}

#[test]
fn qwen_bpe() {
    check("qwen_bpe");
}

#[test]
fn qwen35_bpe() {
    check("qwen35_bpe");
}
