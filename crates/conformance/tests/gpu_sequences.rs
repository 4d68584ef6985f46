//! Sequences on the gpu executor: ragged batches, snapshots, long prompts, speculation, and really trained models.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use cortiq_conformance::{Model, Piece, alone, convert_fixture, fixtures_dir, golden, max_abs_diff, open_model, step};
use cortiq_engine::{
    Engine, EngineOptions, ExecutorKind, GenerateOptions, PerplexityOptions, SamplingParams, Speculation,
};
use cortiq_gpu::{AdapterChoice, GpuExecutor, Precision};
use cortiq_hybrid::{GpuPlan, Probe};
use cortiq_model::{Executor, StateLimits};
use cortiq_quant::Encoding;

const LIMITS: StateLimits = StateLimits { max_positions: 1200, max_bytes: 1 << 30 };

/// Attention, windows, experts and latent attention, delta nets, short convolutions.
const KINDS: [&str; 5] = ["llama_gqa", "gemma3_text", "deepseek_v3", "qwen3_next", "lfm2"];

fn fixture(name: &str) -> Model {
    let folder = tempfile::tempdir().unwrap();
    open_model(&convert_fixture(name, Encoding::F32, folder.path()))
}

/// Row-major logits of the steps that feed `tokens` in the given chunks, interleaved with other sequences.
fn ragged(gpu: &mut GpuExecutor, sequences: &[(&[u32], [usize; 3])]) -> Vec<Vec<f32>> {
    let ids: Vec<_> = sequences.iter().map(|_| gpu.states().open().unwrap()).collect();
    let mut logits = vec![Vec::new(); sequences.len()];
    for turn in 0..3 {
        let piece = |i: &usize| {
            let (tokens, chunks) = &sequences[*i];
            let start: usize = chunks[..turn].iter().sum();
            let tokens = &tokens[start..start + chunks[turn]];
            Piece { sequence: ids[*i], start, tokens, known_len: start + tokens.len() }
        };
        // Another order in each step; a sequence without tokens sits it out.
        let mut order: Vec<usize> = (0..sequences.len()).filter(|i| sequences[*i].1[turn] > 0).collect();
        order.rotate_left(turn % 2);
        let pieces: Vec<Piece<'_>> = order.iter().map(piece).collect();
        for (i, rows) in order.iter().zip(step(gpu, &pieces)) {
            logits[*i].extend(rows);
        }
    }
    ids.into_iter().for_each(|id| gpu.states().close(id).unwrap());
    logits
}

fn check_ragged(name: &str) {
    let model = fixture(name);
    let mut gpu = model.gpu(Precision::Exact, LIMITS);
    let tokens = golden(name).sequences.swap_remove(2).input_ids;
    let take = |from: usize, len: usize| &tokens[from..from + len];
    // Prompts in chunks of different sizes beside sequences that grow by one token.
    let sequences = [
        (take(0, 40), [37, 2, 1]),
        (take(3, 3), [1, 1, 1]),
        (take(5, 35), [0, 33, 2]),
        (take(9, 20), [5, 5, 10]),
        (take(20, 2), [1, 0, 1]),
    ];
    let together = ragged(&mut gpu, &sequences);
    for ((tokens, _), ours) in sequences.iter().zip(&together) {
        let difference = max_abs_diff(ours, &alone(&mut gpu, tokens, tokens.len()));
        assert!(difference <= 1e-4, "{name}, {} tokens: {difference}", tokens.len());
    }
    // An unrelated batch in between changes nothing, not even by rounding.
    let first = alone(&mut gpu, take(0, 30), 7);
    ragged(&mut gpu, &sequences);
    assert!(first == alone(&mut gpu, take(0, 30), 7), "{name}: a second run differs");
}

fn check_snapshots(name: &str) {
    let model = fixture(name);
    let mut gpu = model.gpu(Precision::Exact, LIMITS);
    let tokens = golden(name).sequences.swap_remove(2).input_ids;
    let sequence = gpu.states().open().unwrap();
    let feed = |gpu: &mut GpuExecutor, start: usize, len: usize| {
        let tokens = &tokens[start..start + len];
        step(gpu, &[Piece { sequence, start, tokens, known_len: start + len }]).remove(0)
    };
    feed(&mut gpu, 0, 20);
    let snapshot = gpu.states().snapshot(sequence).unwrap();
    // Positions 20.. share a block with the snapshot: writing them must not change it.
    let first = feed(&mut gpu, 20, 25);
    gpu.states().restore(sequence, snapshot).unwrap();
    let other: Vec<u32> = tokens[20..45].iter().rev().copied().collect();
    step(&mut gpu, &[Piece { sequence, start: 20, tokens: &other, known_len: 45 }]);
    gpu.states().restore(sequence, snapshot).unwrap();
    gpu.states().release(snapshot).unwrap();
    assert!(first == feed(&mut gpu, 20, 25), "{name}: after going back");
    gpu.states().close(sequence).unwrap();
}

macro_rules! per_kind {
    ($($model:ident)*) => {
        mod ragged_batch { $(#[test] fn $model() { super::check_ragged(stringify!($model)); })* }
        mod snapshots { $(#[test] fn $model() { super::check_snapshots(stringify!($model)); })* }
        #[test]
        fn every_kind_is_tested() {
            assert_eq!([$(stringify!($model)),*], KINDS);
        }
    };
}

per_kind!(llama_gqa gemma3_text deepseek_v3 qwen3_next lfm2);

/// A prompt longer than a submission, one beyond the kernel for short contexts, against one token at a time.
#[test]
fn long_prompts_are_cut() {
    let model = fixture("llama_gqa");
    let mut gpu = model.gpu(Precision::Exact, LIMITS);
    let tokens: Vec<u32> = golden("llama_gqa").sequences.swap_remove(3).input_ids.repeat(4)[..1100].to_vec();
    let at_once = alone(&mut gpu, &tokens, 1100);
    let vocab = at_once.len() / tokens.len();
    let in_parts = alone(&mut gpu, &tokens, 700);
    assert!(max_abs_diff(&at_once, &in_parts) <= 1e-3, "{}", max_abs_diff(&at_once, &in_parts));
    // The last tokens one by one, from below the border between the two decoding kernels to beyond it.
    let sequence = gpu.states().open().unwrap();
    let mut feed = |start: usize, len: usize| {
        let piece = Piece { sequence, start, tokens: &tokens[start..start + len], known_len: start + len };
        step(&mut gpu, &[piece]).remove(0)
    };
    feed(0, 505);
    for position in 505..520 {
        let logits = feed(position, 1);
        let difference = max_abs_diff(&logits, &at_once[position * vocab..(position + 1) * vocab]);
        assert!(difference <= 1e-3, "position {position}: {difference}");
    }
}

fn options(executor: ExecutorKind) -> EngineOptions {
    let adapter = AdapterChoice { allow_software: true, ..AdapterChoice::default() };
    let gpu = GpuPlan { adapter, probe: Probe::Trust, ..GpuPlan::default() };
    EngineOptions { executor, gpu, ..EngineOptions::default() }
}

fn trained() -> [PathBuf; 2] {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/story-hybrid.cmf");
    [fixtures_dir().join("trained/story-1bit.cmf"), demo]
}

/// Perplexity of trained models (1 bit; 4 bits with delta nets) in the fast mode, within 0.1 % of the reference.
#[test]
fn trained_models_score_as_on_the_reference() {
    let text = std::fs::read_to_string(fixtures_dir().join("trained/valid_a.txt")).unwrap();
    for path in trained() {
        let score = |executor| {
            let mut engine = Engine::open(&path, &options(executor)).unwrap();
            let prefix = engine.tokenizer().unwrap().id_of("<|endoftext|>").unwrap();
            let mut ids = engine.tokenizer().unwrap().encode(&text, false).unwrap();
            ids.truncate(4 * 255);
            let options = PerplexityOptions { window: 256, stride: None, prefix: Some(prefix) };
            engine.perplexity(&ids, &options, &mut |_, _| {}).unwrap().perplexity()
        };
        let ratio = score(ExecutorKind::Gpu) / score(ExecutorKind::Reference);
        println!("{}: {ratio:.6}", path.display());
        assert!((ratio - 1.0).abs() <= 1e-3, "{}: {ratio}", path.display());
    }
}

/// The prediction head of the trained hybrid drafts on the device; its answer is the plain one.
#[test]
fn speculation_gives_the_plain_answer() {
    let [_, demo] = trained();
    let mut engine =
        Engine::open(&demo, &EngineOptions { precision: Precision::Exact, ..options(ExecutorKind::Gpu) }).unwrap();
    engine.set_always_speculate(true);
    let prompt = engine.tokenizer().unwrap().encode("Once upon a time", false).unwrap();
    let mut answer = |speculative| {
        let options = GenerateOptions {
            max_tokens: 48,
            sampling: SamplingParams::greedy(),
            stop: Vec::new(),
            ignore_eos: true,
            speculative,
        };
        let mut sequence = engine.sequence().unwrap();
        let result = engine.generate(&mut sequence, &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
        engine.close(sequence).unwrap();
        result
    };
    let plain = answer(Speculation::Off);
    let drafted = answer(Speculation::Mtp { draft_tokens: 2 });
    assert_eq!(plain.tokens, drafted.tokens);
    assert!(drafted.accepted * 2 > drafted.drafted, "{} of {}", drafted.accepted, drafted.drafted);
}
