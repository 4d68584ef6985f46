//! Speculative decoding gives what plain decoding gives: tokens, text, reason to end, and state afterwards.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cortiq_cmf::{CmfFile, Dtype};
use cortiq_conformance::{MTP_MODELS, Model, convert_fixture, golden, open_model, random_model};
use cortiq_engine::{
    DraftKind, Engine, EngineError, EngineOptions, ExecutorKind, FinishReason, GenerateOptions, Generation, LogitRows,
    SamplingParams, Speculation,
};
use cortiq_model::{ModelError, NamedShape, TensorId, Weights};
use cortiq_quant::Encoding;

/// Models for prompt lookup: grouped heads, windows, latent attention, longrope, experts, and three hybrids.
const NGRAM_MODELS: [&str; 8] =
    ["llama_gqa", "mistral_swa", "gemma3_text", "deepseek_v3", "phi3_longrope", "qwen3_5", "qwen3_5_moe", "qwen3_next"];

fn open(name: &str, executor: ExecutorKind, context: Option<usize>) -> Engine {
    let folder = tempfile::tempdir().unwrap();
    let file = convert_fixture(name, Encoding::F32, folder.path());
    let file = CmfFile::open_owned(&file).unwrap();
    let options = EngineOptions { executor, context, ..EngineOptions::default() };
    let mut engine = Engine::from_file(Arc::new(file), &options).unwrap();
    engine.set_always_speculate(true);
    engine
}

fn greedy(max_tokens: usize, speculative: Speculation) -> GenerateOptions {
    GenerateOptions { max_tokens, sampling: SamplingParams::greedy(), stop: Vec::new(), ignore_eos: true, speculative }
}

/// What a generation and the turn after it gave.
struct Outcome {
    first: Generation,
    /// Tokens whose state the sequence held after the first.
    held: Vec<u32>,
    second: Generation,
}

/// Two turns in one sequence. The caller breaks off after `pieces` calls of `on_text` in the first.
fn two_turns(engine: &mut Engine, prompt: &[u32], options: &GenerateOptions, pieces: usize) -> Outcome {
    let mut sequence = engine.sequence().unwrap();
    let mut seen = 0;
    let mut on_text = |_: &str| {
        seen += 1;
        if seen == pieces { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let first = engine.generate(&mut sequence, prompt, options, &mut on_text).unwrap();
    let held = sequence.tokens().to_vec();
    let next = [prompt, &first.tokens, &[5, 6, 7]].concat();
    let options = GenerateOptions { max_tokens: 12, stop: Vec::new(), ..options.clone() };
    let second = if next.len() < engine.context() {
        engine.generate(&mut sequence, &next, &options, &mut |_| ControlFlow::Continue(())).unwrap()
    } else {
        first.clone()
    };
    engine.close(sequence).unwrap();
    Outcome { first, held, second }
}

/// Runs both ways, compares everything but speed, and returns the outcome with speculation.
fn same(engine: &mut Engine, what: &str, prompt: &[u32], options: &GenerateOptions, pieces: usize) -> Outcome {
    let plain = GenerateOptions { speculative: Speculation::Off, ..options.clone() };
    let plain = two_turns(engine, prompt, &plain, pieces);
    let ours = two_turns(engine, prompt, options, pieces);
    assert_eq!((plain.first.speculation, plain.first.drafted, plain.first.accepted), (None, 0, 0), "{what}");
    assert_eq!(ours.held, plain.held, "{what}: state after the first turn");
    for (turn, ours, plain) in [(1, &ours.first, &plain.first), (2, &ours.second, &plain.second)] {
        assert_eq!(ours.tokens, plain.tokens, "{what}: tokens of turn {turn}");
        assert_eq!(ours.text, plain.text, "{what}: text of turn {turn}");
        assert_eq!(ours.finish_reason, plain.finish_reason, "{what}: end of turn {turn}");
        assert_eq!(ours.prompt_computed, plain.prompt_computed, "{what}: reuse in turn {turn}");
        assert!(ours.accepted <= ours.drafted && ours.accepted <= ours.tokens.len(), "{what}: counts");
    }
    ours
}

#[test]
fn speculative_greedy_with_the_prediction_head_equals_plain_greedy() {
    for name in MTP_MODELS {
        let mut engine = open(name, ExecutorKind::Reference, None);
        for sequence in golden(name).sequences {
            for draft_tokens in [1, 3] {
                let options = greedy(40, Speculation::Mtp { draft_tokens });
                let what = format!("{name}, {} tokens, {draft_tokens} drafts", sequence.input_ids.len());
                let Outcome { first, .. } = same(&mut engine, &what, &sequence.input_ids, &options, 0);
                println!("{what}: {} of {} accepted", first.accepted, first.drafted);
                assert_eq!(first.speculation, Some(DraftKind::Mtp), "{what}");
                // Each step but the last ones guesses, and gives at most one token more than it guessed.
                assert!(first.drafted >= 39 * draft_tokens / (draft_tokens + 1) - draft_tokens, "{what}");
            }
        }
    }
}

#[test]
fn speculative_greedy_with_prompt_lookup_equals_plain_greedy() {
    for name in NGRAM_MODELS {
        let mut engine = open(name, ExecutorKind::Reference, None);
        let (mut drafted, mut accepted) = (0, 0);
        for sequence in golden(name).sequences {
            let what = format!("{name}, {} tokens", sequence.input_ids.len());
            let options = greedy(64, Speculation::NGram { draft_tokens: 4 });
            let outcome = same(&mut engine, &what, &sequence.input_ids, &options, 0);
            drafted += outcome.first.drafted;
            accepted += outcome.first.accepted;
        }
        println!("{name}: {accepted} of {drafted} accepted");
        assert!(drafted > accepted, "{name}: no guess was rejected");
    }
}

#[test]
fn speculative_auto_takes_the_head_where_there_is_one_and_the_monitor_changes_no_token() {
    for (name, kind) in [("qwen3_5_vl_layout", DraftKind::Mtp), ("llama_gqa", DraftKind::NGram)] {
        let mut engine = open(name, ExecutorKind::Reference, None);
        let prompt = golden(name).sequences.swap_remove(1).input_ids;
        engine.set_always_speculate(false);
        let outcome = same(&mut engine, name, &prompt, &greedy(150, Speculation::Auto), 0);
        assert_eq!(outcome.first.speculation, Some(kind), "{name}");
        assert!(outcome.first.drafted > 0, "{name}");
    }
}

#[test]
fn speculative_the_cpu_executor_agrees_up_to_small_margins() {
    for (name, speculative) in MTP_MODELS
        .map(|name| (name, Speculation::Mtp { draft_tokens: 2 }))
        .into_iter()
        .chain(NGRAM_MODELS.map(|name| (name, Speculation::NGram { draft_tokens: 4 })))
    {
        let mut engine = open(name, ExecutorKind::Cpu, None);
        // The longest prompt adds time and nothing new.
        for sequence in golden(name).sequences.into_iter().take(3) {
            let want = &sequence.greedy;
            let options = greedy(want.tokens.len(), speculative);
            let got = two_turns(&mut engine, &sequence.input_ids, &options, 0).first.tokens;
            let certain = want.certain(0.02);
            assert_eq!(got[..certain], want.tokens[..certain], "{name}, {} tokens", sequence.input_ids.len());
        }
    }
}

/// Sampling that leaves `ids` alone to choose from, about evenly.
fn among(ids: &[u32], seed: u64) -> SamplingParams {
    SamplingParams {
        temperature: 5.0,
        top_p: 1.0,
        logit_bias: ids.iter().map(|&id| (id, 100.0)).collect(),
        seed: Some(seed),
        ..SamplingParams::default()
    }
}

#[test]
fn speculative_limits_inside_accepted_guesses_are_kept() {
    for name in ["llama_gqa", "qwen3_5_vl_layout"] {
        let mut engine = open(name, ExecutorKind::Reference, Some(72));
        let eos = engine.eos_token_ids()[0];
        let prompt = [11, 12, eos, 11, 12, eos, 11, 12, eos, 11, 12];
        let (mut ended_by_a_guess, mut accepted) = (0, 0);
        for seed in 0..10 {
            let base = GenerateOptions {
                sampling: among(&[11, 12, eos], seed),
                ignore_eos: seed % 2 == 1,
                ..greedy(30, Speculation::NGram { draft_tokens: 4 })
            };
            let text = two_turns(&mut engine, &prompt, &base, 0).first.text;
            let stop: String = text.chars().skip(4).take(3).collect();
            let stop = if stop.is_empty() { Vec::new() } else { vec![stop] };
            let cases = [
                ("end token", base.clone(), 0),
                ("max_tokens", GenerateOptions { max_tokens: 3 + seed as usize % 5, ..base.clone() }, 0),
                ("stop string", GenerateOptions { stop, ..base.clone() }, 0),
                ("context", GenerateOptions { max_tokens: usize::MAX, ..base.clone() }, 0),
                ("caller", base.clone(), 2 + seed as usize % 4),
            ];
            for (what, options, pieces) in cases {
                let what = format!("{name}, {what}, seed {seed}");
                let Outcome { first, held, .. } = same(&mut engine, &what, &prompt, &options, pieces);
                let kept = [&prompt[..], &first.tokens[..first.tokens.len() - 1]].concat();
                assert_eq!(held, kept, "{what}: all but the last token");
                let end = first.tokens.iter().position(|&id| id == eos && !options.ignore_eos);
                assert!(end.is_none_or(|end| end + 1 == first.tokens.len()), "{what}: a token after the end");
                accepted += first.accepted;
                // All but the first token were guessed right, the end token too.
                ended_by_a_guess +=
                    usize::from(first.finish_reason == FinishReason::Stop && first.accepted + 1 == first.tokens.len());
            }
        }
        println!("{name}: {accepted} accepted, {ended_by_a_guess} ended by a guess");
        assert!(accepted > 100 && ended_by_a_guess > 0, "{name}: {accepted}, {ended_by_a_guess}");
    }
}

#[test]
fn speculative_snapshots_do_not_pile_up() {
    // The budget is that of two sequences of full length, here a few slots of the recurrent layers.
    let mut engine = open("qwen3_5_vl_layout", ExecutorKind::Cpu, Some(32));
    let mut drafted = 0;
    for i in 0..60 {
        let speculative =
            if i % 2 == 0 { Speculation::Mtp { draft_tokens: 2 } } else { Speculation::NGram { draft_tokens: 4 } };
        let outcome = two_turns(&mut engine, &[3, 4, 5, 3, 4, 5, 3], &greedy(usize::MAX, speculative), i % 7);
        drafted += outcome.first.drafted;
    }
    assert!(drafted > 60, "{drafted}");
}

/// Weights of which one access fails: the one that counts `left` down to 0.
struct Failing {
    inner: Arc<dyn Weights>,
    left: AtomicUsize,
}

const ON_PURPOSE: &str = "fails on purpose";

impl Weights for Failing {
    fn find(&self, name: &str) -> Option<TensorId> {
        self.inner.find(name)
    }

    fn dtype(&self, id: TensorId) -> Result<Dtype, ModelError> {
        self.inner.dtype(id)
    }

    fn shape(&self, id: TensorId) -> Result<&[u32], ModelError> {
        self.inner.shape(id)
    }

    fn bytes(&self, id: TensorId) -> Result<&[u8], ModelError> {
        let countdown = |left: usize| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, countdown) {
            Ok(1) => Err(ModelError::Executor(ON_PURPOSE.to_owned())),
            _ => self.inner.bytes(id),
        }
    }
}

/// How many sequences of one token there is room for.
fn room(engine: &mut Engine) -> usize {
    let mut open = Vec::new();
    let error = loop {
        let mut sequence = match engine.sequence() {
            Ok(sequence) => sequence,
            Err(error) => break error,
        };
        let fed = engine.extend(&mut sequence, &[1], LogitRows::None).map(|_| ());
        open.push(sequence);
        if let Err(error) = fed {
            break error;
        }
    };
    assert!(matches!(error, EngineError::Model(ModelError::StateFull { .. })), "{error}");
    let count = open.len();
    open.into_iter().for_each(|sequence| engine.close(sequence).unwrap());
    count
}

#[test]
fn speculative_a_failing_step_leaves_no_snapshot_and_no_guess() {
    let cases = [
        ("qwen3_5_vl_layout", Speculation::Mtp { draft_tokens: 2 }),
        ("qwen3_5_moe", Speculation::NGram { draft_tokens: 4 }),
        ("llama_gqa", Speculation::NGram { draft_tokens: 4 }),
    ];
    for (name, speculative) in cases {
        let folder = tempfile::tempdir().unwrap();
        let Model { header, weights } = open_model(&convert_fixture(name, Encoding::F32, folder.path()));
        let weights = Arc::new(Failing { inner: weights, left: AtomicUsize::new(0) });
        // The budget is that of two such sequences: a snapshot that stayed would be missed at once.
        let options =
            EngineOptions { executor: ExecutorKind::Reference, context: Some(40), ..EngineOptions::default() };
        let mut engine = Engine::from_weights(&header, weights.clone(), &options).unwrap();
        engine.set_always_speculate(true);
        // Few tokens to choose from, so that the text repeats and there is something to look up.
        let options = GenerateOptions { sampling: among(&[3, 4, 5], 1), ..greedy(16, speculative) };
        let prompt = [3, 4, 5, 3, 4, 5, 3];
        let run = |engine: &mut Engine, fail_at: usize| {
            let mut sequence = engine.sequence().unwrap();
            weights.left.store(fail_at, Ordering::Relaxed);
            let failed = engine.generate(&mut sequence, &prompt, &options, &mut |_| ControlFlow::Continue(()));
            let left = weights.left.swap(0, Ordering::Relaxed);
            let held = sequence.tokens().to_vec();
            // The same sequence goes on as if nothing had happened.
            let after = engine.generate(&mut sequence, &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
            engine.close(sequence).unwrap();
            (failed, held, after, left)
        };
        let many = usize::MAX / 2;
        let (plain, _, _, left) = run(&mut engine, many);
        let plain = plain.unwrap();
        assert!(plain.drafted > 8 && plain.drafted > plain.accepted, "{name}: {plain:?}");
        let accesses = many - left;
        let before = room(&mut engine);
        assert!((2..100).contains(&before), "{name}: room for {before} sequences");
        let tokens = [&prompt[..], &plain.tokens].concat();
        // An odd step, so that the failures fall upon every kind of operation.
        for fail_at in (1..=accesses).step_by((accesses / 60) | 1) {
            let what = format!("{name}, access {fail_at} of {accesses}");
            let (failed, held, after, _) = run(&mut engine, fail_at);
            let error = failed.unwrap_err();
            let on_purpose = matches!(&error, EngineError::Model(ModelError::Executor(text)) if text == ON_PURPOSE);
            assert!(on_purpose, "{what}: {error}");
            assert!(tokens.starts_with(&held), "{what}: the sequence holds {held:?}");
            assert_eq!(after.tokens, plain.tokens, "{what}: the generation after it");
            assert_eq!(room(&mut engine), before, "{what}: room for sequences");
        }
    }
}

#[test]
fn speculative_impossible_wishes_are_refused() {
    let mut engine = open("llama_gqa", ExecutorKind::Cpu, None);
    let mut sequence = engine.sequence().unwrap();
    let mut refused = |speculative| {
        let options = greedy(2, speculative);
        engine.generate(&mut sequence, &[1, 2], &options, &mut |_| ControlFlow::Continue(())).unwrap_err()
    };
    let error = refused(Speculation::Mtp { draft_tokens: 1 });
    assert!(matches!(error, EngineError::Model(ModelError::NoPredictionHead)), "{error}");
    for count in [0, 17] {
        let error = refused(Speculation::NGram { draft_tokens: count });
        assert!(matches!(error, EngineError::DraftTokens(n) if n == count), "{error}");
    }
}

/// Counts of pairs of tokens at two places, over `seeds`.
type Pairs = BTreeMap<(u32, u32), f64>;

/// Two-sample chi-square over cells with at least ten observations, and its degrees of freedom.
fn chi_square(a: &Pairs, b: &Pairs) -> (f64, usize) {
    let (total_a, total_b): (f64, f64) = (a.values().sum(), b.values().sum());
    let keys: std::collections::BTreeSet<_> = a.keys().chain(b.keys()).collect();
    let (mut statistic, mut cells) = (0.0, 0);
    for key in keys {
        let of = |pairs: &Pairs| pairs.get(key).copied().unwrap_or(0.0);
        let (x, y) = (of(a), of(b));
        if x + y >= 10.0 {
            let difference = (total_b / total_a).sqrt() * x - (total_a / total_b).sqrt() * y;
            statistic += difference * difference / (x + y);
            cells += 1;
        }
    }
    (statistic, cells - 1)
}

#[test]
fn speculative_with_temperature_the_distribution_is_the_samplers() {
    let shape = NamedShape {
        name: "small",
        num_layers: 1,
        hidden_size: 32,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        intermediate_size: 32,
        vocab_size: 5,
        tied: false,
        qk_norm: false,
        rope_theta: 1e4,
        experts: None,
        delta: None,
    };
    let model = random_model(&shape, Dtype::F32, 3);
    let options = EngineOptions { executor: ExecutorKind::Reference, context: Some(32), ..EngineOptions::default() };
    let mut engine = Engine::from_weights(&model.header, model.weights, &options).unwrap();
    engine.set_always_speculate(true);
    let sampling =
        SamplingParams { temperature: 1.5, top_p: 0.97, frequency_penalty: 0.3, ..SamplingParams::default() };
    let (mut drafted, mut accepted) = (0, 0);
    let mut count = |speculative, seeds: std::ops::Range<u64>| {
        let mut sequence = engine.sequence().unwrap();
        let mut places = [Pairs::new(), Pairs::new()];
        for seed in seeds {
            let sampling = SamplingParams { seed: Some(seed), ..sampling.clone() };
            let options = GenerateOptions { sampling, ..greedy(4, speculative) };
            let prompt = [0, 1, 2, 3, 4, 0, 2, 4, 1, 3, 0];
            let result = engine.generate(&mut sequence, &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
            for (place, pairs) in places.iter_mut().enumerate() {
                *pairs.entry((result.tokens[place], result.tokens[place + 1])).or_default() += 1.0;
            }
            drafted += result.drafted;
            accepted += result.accepted;
        }
        engine.close(sequence).unwrap();
        places
    };
    let plain = count(Speculation::Off, 0..6000);
    let ours = count(Speculation::NGram { draft_tokens: 3 }, 6000..12000);
    for (place, (plain, ours)) in plain.iter().zip(&ours).enumerate() {
        let (statistic, freedom) = chi_square(plain, ours);
        // Mean and standard deviation of the statistic are n and sqrt(2n).
        let bound = freedom as f64 + 5.0 * (2.0 * freedom as f64).sqrt();
        println!("tokens {place} and {}: {statistic:.1} with {freedom} degrees of freedom", place + 1);
        assert!(freedom >= 8 && statistic < bound, "place {place}: {statistic} of {bound}, {freedom} cells");
    }
    assert!(accepted > 1000 && drafted - accepted > 1000, "{accepted} of {drafted} accepted");
    // The test is able to fail: one place further on, the distribution is another.
    let (statistic, freedom) = chi_square(&plain[0], &ours[1]);
    assert!(statistic > 2.0 * freedom as f64, "places 0 and 1 look alike: {statistic} with {freedom}");
}
