//! Really trained models against the values that transformers computed (fixtures/trained/README.md).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cortiq_conformance::{Piece, fixtures_dir, open_model, step};
use cortiq_engine::sampler::argmax;
use cortiq_engine::{
    DraftKind, Engine, EngineOptions, GenerateOptions, Generation, PerplexityOptions, SamplingParams, Speculation,
};
use cortiq_model::{DraftInput, DraftSource, Executor};
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

/// A greedy continuation in a fresh sequence.
fn greedy(engine: &mut Engine, prompt: &[u32], count: usize, speculative: Speculation) -> Generation {
    let options = GenerateOptions {
        max_tokens: count,
        sampling: SamplingParams::greedy(),
        stop: Vec::new(),
        ignore_eos: true,
        speculative,
    };
    let mut sequence = engine.sequence().unwrap();
    let result = engine.generate(&mut sequence, prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    engine.close(sequence).unwrap();
    result
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
        let result = greedy(&mut engine, ids, golden.ids.len(), Speculation::Off);
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

/// Of the tokens after the first of a continuation of `prompt`, those that the prediction head guesses one token ahead,
/// from the model's hidden state and the right token before.
fn guessed_right(executor: &mut dyn Executor, prompt: &[u32], continuation: &[u32]) -> usize {
    let tokens = [prompt, continuation].concat();
    let sequence = executor.states().open().unwrap();
    step(executor, &[Piece { sequence, start: 0, tokens: &tokens, known_len: tokens.len() }]);
    // Row i takes token i + 1 and guesses token i + 2; the head's own state starts with the prompt.
    let rows: Vec<usize> = (0..tokens.len() - 2).collect();
    let logit_rows = &rows[prompt.len() - 1..];
    let input = DraftInput { source: DraftSource::Step, rows: &rows, next: &tokens[1..tokens.len() - 1], logit_rows };
    let logits = executor.draft(&input).unwrap();
    let rows = logits.chunks_exact(logits.len() / logit_rows.len());
    let right = rows.zip(&continuation[1..]).filter(|(row, token)| argmax(row).unwrap() == **token).count();
    executor.states().close(sequence).unwrap();
    right
}

/// With one guess per token, at every token of the greedy continuations of `eval.json`'s prompts (which offers 84.9 %
/// of 504, on more prompts than it names), and with the engine's loop, which skips what it guessed.
#[test]
fn the_demos_prediction_head_guesses_four_of_five_tokens() {
    let mut engine = open(&demo());
    let mut executor = open_model(&demo()).cpu(2);
    let (mut right, mut offered, mut accepted, mut drafted) = (0, 0, 0, 0);
    engine.set_always_speculate(true);
    for golden in &evaluation("story-hybrid").greedy {
        let plain = greedy(&mut engine, &golden.prompt_ids, 64, Speculation::Off).tokens;
        right += guessed_right(&mut executor, &golden.prompt_ids, &plain);
        offered += plain.len() - 1;
        let ours = greedy(&mut engine, &golden.prompt_ids, 64, Speculation::Mtp { draft_tokens: 1 });
        assert_eq!((ours.speculation, &ours.tokens), (Some(DraftKind::Mtp), &plain), "{}", golden.prompt);
        accepted += ours.accepted;
        drafted += ours.drafted;
    }
    println!("{right} of {offered} at every token, {accepted} of {drafted} in the loop");
    assert_eq!(offered, 5 * 63);
    assert!(5 * right >= 4 * offered, "{right} of {offered}");
    // A loop whose head had another state than here would guess worse.
    assert!(10 * accepted >= 7 * drafted && drafted + accepted >= 5 * 62, "{accepted} of {drafted}");
}
