//! What goes wrong on a GPU is an error of the step that it happened in: no panic, no hang, no wrong answer later. And
//! several executors do not disturb each other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::slice;
use std::sync::Arc;

use cortiq_conformance::{Model, alone, convert_fixture, golden, max_abs_diff, open_model, test_gpu};
use cortiq_engine::{Engine, EngineOptions, ExecutorKind, LogitRows};
use cortiq_gpu::{AdapterChoice, Budget, BudgetOrigin, Gpu, GpuError, GpuExecutor, GpuOptions, Need, Precision};
use cortiq_hybrid::{GpuPlan, Probe};
use cortiq_model::{Batch, Executor, ModelError, Span, StateLimits};
use cortiq_quant::Encoding;

const LIMITS: StateLimits = StateLimits { max_positions: 512, max_bytes: 1 << 30 };

fn software() -> AdapterChoice {
    AdapterChoice { allow_software: true, ..AdapterChoice::default() }
}

fn fixture(name: &str) -> (tempfile::TempDir, Model) {
    let folder = tempfile::tempdir().unwrap();
    let model = open_model(&convert_fixture(name, Encoding::F32, folder.path()));
    (folder, model)
}

fn executor(gpu: &Arc<Gpu>, model: &Model, limits: StateLimits) -> GpuExecutor {
    let options = GpuOptions::new(limits).with_precision(Precision::Exact);
    GpuExecutor::new(Arc::clone(gpu), model.program(), Arc::clone(&model.weights), options).unwrap()
}

/// Error of a step that appends `tokens` to a sequence of `start` tokens.
fn failing_step(
    executor: &mut GpuExecutor,
    sequence: cortiq_model::SequenceId,
    start: usize,
    tokens: &[u32],
) -> String {
    let span = Span { sequence, start, len: tokens.len(), known_len: 0 };
    let last = [tokens.len() - 1];
    executor.step(&Batch { tokens, spans: &[span], logit_rows: &last }).unwrap_err().to_string()
}

#[test]
fn a_lost_device_fails_steps_with_and_without_logits() {
    let (_folder, model) = fixture("llama_gqa");
    let gpu = Arc::new(Gpu::open(&software()).unwrap());
    let mut executor = executor(&gpu, &model, LIMITS);
    let sequence = executor.states().open().unwrap();
    let span = Span { sequence, start: 0, len: 3, known_len: 0 };
    executor.step(&Batch { tokens: &[1, 2, 3], spans: &[span], logit_rows: &[2] }).unwrap();
    gpu.destroy();
    for logit_rows in [&[][..], &[0]] {
        let span = Span { sequence, start: 3, len: 1, known_len: 0 };
        let error = executor.step(&Batch { tokens: &[4], spans: &[span], logit_rows }).unwrap_err();
        assert!(error.to_string().contains("GPU was lost"), "{error}");
        assert_eq!(executor.states().len(sequence).unwrap(), 3);
    }
    let options = GpuOptions::new(LIMITS);
    let again = GpuExecutor::new(gpu, model.program(), Arc::clone(&model.weights), options);
    assert!(matches!(again, Err(GpuError::Lost(_))));
    // The process lives on: a device opened anew takes the weights from the same map.
    let gpu = Arc::new(Gpu::open(&software()).unwrap());
    let mut executor = self::executor(&gpu, &model, LIMITS);
    let sequence = golden("llama_gqa").sequences.swap_remove(1);
    let logits = alone(&mut executor, &sequence.input_ids, 64);
    let vocab = sequence.last_logits.len();
    assert!(max_abs_diff(&logits[logits.len() - vocab..], &sequence.last_logits) <= 2e-3);
}

#[test]
fn a_step_that_does_not_fit_leaves_everything_as_it_was() {
    // Attention only, and a hybrid whose state cannot go back.
    for (name, kept) in [("llama_gqa", 40), ("qwen3_next", 40)] {
        let (_folder, model) = fixture(name);
        let mut whole = executor(&test_gpu(), &model, LIMITS);
        let tokens: Vec<u32> = (0..60).map(|i| (i * 7 + 3) % 200).collect();
        let expected = alone(&mut whole, &tokens, 64);
        let mut tight = executor(&test_gpu(), &model, StateLimits { max_positions: 64, ..LIMITS });
        let sequence = tight.states().open().unwrap();
        let span = Span { sequence, start: 0, len: kept, known_len: 0 };
        tight.step(&Batch { tokens: &tokens[..kept], spans: &[span], logit_rows: &[] }).unwrap();
        let error = failing_step(&mut tight, sequence, kept, &[1; 30]);
        assert!(error.contains("64"), "{error}");
        let start = tight.states().len(sequence).unwrap();
        assert_eq!(start, kept, "refused before anything was computed");
        let rows: Vec<usize> = (0..60 - start).collect();
        let span = Span { sequence, start, len: 60 - start, known_len: 0 };
        let logits = tight.step(&Batch { tokens: &tokens[start..], spans: &[span], logit_rows: &rows }).unwrap();
        let vocab = expected.len() / 60;
        assert!(max_abs_diff(logits, &expected[start * vocab..]) <= 2e-3, "{name}");
    }
}

/// All operations of a model's program.
fn whole(model: &Model) -> std::ops::Range<usize> {
    0..model.program().ops.len()
}

#[test]
fn a_model_beyond_the_budget_is_refused_before_the_upload() {
    let (_folder, model) = fixture("qwen3");
    let gpu = Arc::new(Gpu::open(&software()).unwrap());
    let options = GpuOptions::new(LIMITS).with_precision(Precision::Exact);
    let need = Need::of(&model.program(), &*model.weights, &options, slice::from_ref(&whole(&model))).unwrap();
    assert!(need.weights > 0 && need.state > 0 && need.scratch > 0 && need.positions == 512);
    let before = gpu.allocated_bytes().unwrap();
    let open = |budget| {
        let options = GpuOptions { budget: Some(budget), ..options };
        GpuExecutor::new(Arc::clone(&gpu), model.program(), Arc::clone(&model.weights), options)
    };
    let error = open(need.total() - 1).err().unwrap();
    let GpuError::OverBudget { need: told, budget, origin } = &error else { panic!("{error}") };
    assert_eq!((*told, *budget, *origin), (need, need.total() - 1, BudgetOrigin::Asked));
    assert_eq!(gpu.allocated_bytes().unwrap(), before);
    assert!(open(need.total()).is_ok());
    // A longer context needs more.
    let longer = GpuOptions { limits: StateLimits { max_positions: 1024, ..LIMITS }, ..options };
    let longer = Need::of(&model.program(), &*model.weights, &longer, slice::from_ref(&whole(&model))).unwrap();
    assert!(longer.state > need.state && longer.weights == need.weights);
    assert!(Budget::of(None, gpu.memory(), gpu.caps()).bytes.is_none_or(|bytes| bytes > need.total()));
}

/// What a model really takes, after a full context in long and in short steps, stays within what was foreseen.
fn check_need(name: &str, encoding: Encoding, precision: Precision) {
    let folder = tempfile::tempdir().unwrap();
    let model = open_model(&convert_fixture(name, encoding, folder.path()));
    let gpu = Arc::new(Gpu::open(&software()).unwrap());
    let limits = StateLimits { max_positions: 128, ..LIMITS };
    let options = GpuOptions { max_rows: 128, ..GpuOptions::new(limits).with_precision(precision) };
    let need = Need::of(&model.program(), &*model.weights, &options, slice::from_ref(&whole(&model))).unwrap();
    let weights = Arc::clone(&model.weights);
    let mut executor = GpuExecutor::new(Arc::clone(&gpu), model.program(), weights, options).unwrap();
    let tokens: Vec<u32> = (0..128).map(|i| (i * 7 + 3) % 200).collect();
    for (count, chunk) in [(128, 128), (12, 6), (2, 1)] {
        alone(&mut executor, &tokens[..count], chunk);
    }
    let real = gpu.allocated_bytes().unwrap();
    println!("{name} {precision:?}: {real} of {need:?}");
    // What the interface keeps for uploads is not part of it.
    assert!(real <= need.total() + (1 << 20), "{name} {precision:?}: {real} bytes, foreseen {need:?}");
}

macro_rules! needs {
    ($($name:ident: $model:literal $encoding:expr, $precision:ident;)*) => {
        mod need {
            use super::*;
            $(#[test] fn $name() { check_need($model, $encoding, Precision::$precision); })*
        }
    };
}

needs! {
    dense: "llama_gqa" Encoding::Q8_2f, Fast;
    experts: "qwen3_moe" Encoding::Q4Block, Fast;
    experts_exact: "qwen2_moe" Encoding::F32, Exact;
    hybrid: "qwen3_next" Encoding::Q8Row, Fast;
    latent: "deepseek_v3" Encoding::Q8Row, Exact;
}

/// Tokens that the greedy choice makes of a prompt.
fn greedy(executor: &mut dyn Executor, prompt: &[u32], count: usize) -> Vec<u32> {
    let sequence = executor.states().open().unwrap();
    let (mut tokens, mut start) = (prompt.to_vec(), 0);
    while tokens.len() < prompt.len() + count {
        let new = &tokens[start..];
        let span = Span { sequence, start, len: new.len(), known_len: 0 };
        let logits = executor.step(&Batch { tokens: new, spans: &[span], logit_rows: &[new.len() - 1] }).unwrap();
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap();
        start = tokens.len();
        tokens.push(best as u32);
    }
    tokens.split_off(prompt.len())
}

#[test]
fn threads_with_executors_of_their_own_share_a_device() {
    let (_folder, model) = fixture("llama_gqa");
    let gpu = Arc::new(Gpu::open(&software()).unwrap());
    let prompts: [&[u32]; 2] = [&[1, 2, 3, 4, 5], &[40, 30, 20]];
    let alone: Vec<_> =
        prompts.map(|prompt| greedy(&mut executor(&gpu, &model, LIMITS), prompt, 12)).into_iter().collect();
    std::thread::scope(|scope| {
        let work = |prompt| {
            let (gpu, model) = (&gpu, &model);
            scope.spawn(move || {
                let mut executor = executor(gpu, model, LIMITS);
                (0..3).map(|_| greedy(&mut executor, prompt, 12)).collect::<Vec<_>>()
            })
        };
        // A neighbour whose steps are refused all the time.
        let noisy = scope.spawn(|| {
            let mut executor = executor(&gpu, &model, StateLimits { max_positions: 8, ..LIMITS });
            let sequence = executor.states().open().unwrap();
            for _ in 0..20 {
                failing_step(&mut executor, sequence, 0, &[1; 9]);
            }
        });
        let both = prompts.map(work);
        for (thread, expected) in both.into_iter().zip(&alone) {
            assert!(thread.join().unwrap().iter().all(|tokens| tokens == expected));
        }
        noisy.join().unwrap();
    });
}

#[test]
fn two_engines_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let options = EngineOptions {
        executor: ExecutorKind::Gpu,
        gpu: GpuPlan { adapter: software(), probe: Probe::Trust, ..GpuPlan::default() },
        precision: Precision::Exact,
        ..EngineOptions::default()
    };
    let mut engines: Vec<_> = ["llama_gqa", "qwen3"]
        .map(|name| (name, Engine::open(&convert_fixture(name, Encoding::F32, folder.path()), &options).unwrap()))
        .into_iter()
        .collect();
    let mut sequences: Vec<_> = engines.iter_mut().map(|(_, engine)| engine.sequence().unwrap()).collect();
    // Token by token in turns.
    let goldens: Vec<_> = engines.iter().map(|(name, _)| golden(name).sequences.swap_remove(1)).collect();
    let longest = goldens.iter().map(|golden| golden.input_ids.len()).max().unwrap();
    let mut last = vec![Vec::new(); engines.len()];
    for position in 0..longest {
        for (i, (_, engine)) in engines.iter_mut().enumerate() {
            if let Some(id) = goldens[i].input_ids.get(position) {
                last[i] = engine.extend(&mut sequences[i], &[*id], LogitRows::Last).unwrap().to_vec();
            }
        }
    }
    for (i, golden) in goldens.iter().enumerate() {
        let difference = max_abs_diff(&last[i], &golden.last_logits);
        assert!(difference <= 2e-3, "{}: {difference}", engines[i].0);
    }
    // One goes, the other stays.
    drop(engines.remove(0));
    sequences.remove(0);
    engines[0].1.extend(&mut sequences[0], &[1], LogitRows::Last).unwrap();
}

#[test]
fn what_the_executor_cannot_do_is_named() {
    let (_folder, model) = fixture("llama_gqa");
    let options = GpuOptions { kv: cortiq_model::KvDtype::Q8, ..GpuOptions::new(LIMITS) };
    let error = GpuExecutor::new(test_gpu(), model.program(), Arc::clone(&model.weights), options).err().unwrap();
    assert!(error.to_string().contains("cache of q8"), "{error}");
    let error: ModelError = error.into();
    assert!(error.to_string().contains("cache of q8"), "{error}");
}
