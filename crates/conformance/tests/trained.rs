//! Really trained models against the values that transformers computed (fixtures/trained/README.md).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cortiq_conformance::fixtures_dir;
use cortiq_engine::{Engine, EngineOptions, GenerateOptions, PerplexityOptions, SamplingParams, Speculation};
use serde::Deserialize;

#[derive(Deserialize)]
struct Evaluation {
    valid_a: Text,
    greedy: Vec<Continuation>,
}

#[derive(Deserialize)]
struct Text {
    first_window_nll: Vec<f64>,
}

#[derive(Deserialize)]
struct Continuation {
    prompt: String,
    prompt_ids: Vec<u32>,
    ids: Vec<u32>,
    margins: Vec<f32>,
}

fn evaluation(name: &str) -> Evaluation {
    let text = std::fs::read_to_string(fixtures_dir().join(format!("trained/{name}.eval.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn open(path: &Path) -> Engine {
    Engine::open(path, &EngineOptions::default()).unwrap()
}

fn one_bit() -> PathBuf {
    fixtures_dir().join("trained/story-1bit.cmf")
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/story-hybrid.cmf")
}

/// Mean negative log-likelihood of the first window of the validation text.
fn first_window(engine: &mut Engine, tokens: usize) -> f64 {
    let text = std::fs::read_to_string(fixtures_dir().join("trained/valid_a.txt")).unwrap();
    let prefix = engine.tokenizer().unwrap().id_of("<|endoftext|>").unwrap();
    let mut ids = engine.tokenizer().unwrap().encode(&text, false).unwrap();
    ids.truncate(tokens);
    let options = PerplexityOptions { window: tokens + 1, stride: None, prefix: Some(prefix) };
    let result = engine.perplexity(&ids, &options, &mut |_, _| {}).unwrap();
    assert_eq!(result.tokens, tokens);
    result.nll_mean
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn one_bit_weights_of_a_one_bit_model_are_lossless() {
    let evaluation = evaluation("story-1bit");
    let theirs = &evaluation.valid_a.first_window_nll;
    let mut engine = open(&one_bit());
    let ours = first_window(&mut engine, theirs.len());
    // Their values have five decimals.
    assert!((ours - mean(theirs)).abs() < 1e-4, "{ours} instead of {}", mean(theirs));
    for golden in &evaluation.greedy {
        let text = engine.tokenizer().unwrap().encode(&golden.prompt, false).unwrap();
        // Plain prompts come behind an end-of-text token, conversations do not.
        assert!(golden.prompt_ids.ends_with(&text) && golden.prompt_ids.len() <= text.len() + 1, "{}", golden.prompt);
        let ids = &golden.prompt_ids;
        let certain = golden.margins.iter().position(|m| *m < 0.02).unwrap_or(golden.ids.len());
        let options = GenerateOptions {
            max_tokens: golden.ids.len(),
            sampling: SamplingParams::greedy(),
            stop: Vec::new(),
            ignore_eos: true,
            speculative: Speculation::Off,
        };
        let mut sequence = engine.sequence().unwrap();
        let result = engine.generate(&mut sequence, ids, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        engine.close(sequence).unwrap();
        assert_eq!(result.tokens[..certain], golden.ids[..certain], "{}", golden.prompt);
    }
}

#[test]
fn the_demo_is_near_its_unquantised_checkpoint() {
    let theirs = evaluation("story-hybrid").valid_a.first_window_nll;
    let ours = first_window(&mut open(&demo()), theirs.len());
    let ratio = (ours - mean(&theirs)).exp();
    assert!((0.97..1.03).contains(&ratio), "the perplexity is {ratio} times that of the checkpoint");
}
