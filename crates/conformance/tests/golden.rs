//! Every executor against the values that transformers computed (docs/design.md §7).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;

use cortiq_conformance::{MODELS, MTP_MODELS, alone, convert_fixture, fixtures_dir, golden, max_abs_diff, open_model};
use cortiq_engine::{Engine, EngineOptions, ExecutorKind, GenerateOptions, SamplingParams, Speculation};
use cortiq_model::{Batch, DraftInput, DraftSource, Executor, Op, RopeTable, Slot, Span};
use cortiq_quant::Encoding;
use cortiq_reference::ReferenceExecutor;

fn greedy(engine: &mut Engine, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut sequence = engine.sequence().unwrap();
    let options = GenerateOptions {
        max_tokens: count,
        sampling: SamplingParams::greedy(),
        stop: Vec::new(),
        ignore_eos: true,
        speculative: Speculation::Off,
    };
    let result = engine.generate(&mut sequence, prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    engine.close(sequence).unwrap();
    result.tokens
}

fn check_model(name: &str, executor: ExecutorKind, tolerance: f32) {
    let folder = tempfile::tempdir().unwrap();
    let file = convert_fixture(name, Encoding::F32, folder.path());
    let mut engine = Engine::open(&file, &EngineOptions { executor, ..EngineOptions::default() }).unwrap();
    let mut lengths = Vec::new();
    for sequence in golden(name).sequences {
        let ids = &sequence.input_ids;
        lengths.push(ids.len());
        let last = engine.logits(ids, false).unwrap();
        let difference = max_abs_diff(&last[0], &sequence.last_logits);
        println!("{name}, {} tokens, {executor:?}: {difference:.2e}", ids.len());
        assert!(difference <= tolerance, "{name}, {} tokens: last logits differ by {difference}", ids.len());
        if let Some(all) = &sequence.all_logits {
            let ours = engine.logits(ids, true).unwrap();
            assert_eq!(ours.len(), all.len());
            for (row, (ours, theirs)) in ours.iter().zip(all).enumerate() {
                let difference = max_abs_diff(ours, theirs);
                assert!(difference <= tolerance, "{name}, row {row}: logits differ by {difference}");
            }
        }
        let tokens = greedy(&mut engine, ids, sequence.greedy.tokens.len());
        let certain = sequence.greedy.certain(0.02);
        assert_eq!(tokens[..certain], sequence.greedy.tokens[..certain], "{name}: greedy tokens");
    }
    assert_eq!(lengths, [1, 7, 64, 300], "{name}: fixture lengths");
}

/// A prompt in one step, in chunks as the engine makes them, and token by token.
fn check_chunks(name: &str) {
    let folder = tempfile::tempdir().unwrap();
    let model = open_model(&convert_fixture(name, Encoding::F32, folder.path()));
    let ids = golden(name).sequences.swap_remove(3).input_ids;
    let mut cpu = model.cpu(2);
    let single = alone(&mut cpu, &ids, 1);
    for chunk in [300, cpu.prefill_chunk(), 50] {
        let difference = max_abs_diff(&alone(&mut cpu, &ids, chunk), &single);
        println!("{name}, chunks of {chunk}: {difference:.2e}");
        assert!(difference <= 2e-4, "{name}, chunks of {chunk} tokens: {difference}");
    }
    // Much slower, and the same bits whatever the chunk.
    let ids = &ids[..100];
    let mut reference = model.reference();
    let single = alone(&mut reference, ids, 1);
    assert!(alone(&mut reference, ids, 100) == single && alone(&mut reference, ids, 33) == single, "{name}");
}

macro_rules! golden_tests {
    ($($model:ident)*) => {
        mod reference {
            $(#[test] fn $model() {
                super::check_model(stringify!($model), super::ExecutorKind::Reference, 2e-4);
            })*
        }
        mod cpu {
            $(#[test] fn $model() {
                super::check_model(stringify!($model), super::ExecutorKind::Cpu, 2e-3);
            })*
        }
        mod chunks {
            $(#[test] fn $model() {
                super::check_chunks(stringify!($model));
            })*
        }
        /// Fails when a fixture has no test above.
        #[test]
        fn every_model_is_tested() {
            let mut on_disk: Vec<String> = std::fs::read_dir(fixtures_dir().join("models"))
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            on_disk.sort_unstable();
            assert_eq!(on_disk, MODELS);
            assert_eq!([$(stringify!($model)),*], MODELS);
            let with_head = |name: &&str| golden(name).sequences.iter().any(|sequence| sequence.mtp.is_some());
            assert!(MODELS.into_iter().filter(with_head).eq(MTP_MODELS));
        }
    };
}

golden_tests!(
    deepseek_v3 gemma gemma2 gemma3_text gemma3_vl_layout gemma4 gemma4_vl_layout lfm2 lfm2_moe llama3_rope llama_gqa
    llama_linear_rope llama_tied_bias mistral_swa mixtral olmo2 phi3 phi3_longrope qwen2_bias qwen2_moe qwen3 qwen3_5
    qwen3_5_moe qwen3_5_moe_vl_layout qwen3_5_vl_layout qwen3_moe qwen3_next qwen3_yarn smollm3
);

/// The residual stream after the embedding and after every layer, within 1e-4 relative.
#[test]
fn hidden_states_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let model = open_model(&convert_fixture(name, Encoding::F32, folder.path()));
        for sequence in golden(name).sequences {
            let Some(trace) = &sequence.trace else { continue };
            let stream = residual_streams(&mut model.reference(), &sequence.input_ids);
            assert_eq!(stream.len(), trace.layers.len() + 1, "{name}: layers");
            let tokens = sequence.input_ids.len();
            let norms = |rows: &[f32]| -> Vec<f32> {
                let norm = |row: &[f32]| row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt() as f32;
                rows.chunks_exact(rows.len() / tokens).map(norm).collect()
            };
            assert_relative(&format!("{name}: embedding"), &norms(&stream[0]), &trace.embed_norm);
            for (i, (rows, layer)) in stream[1..].iter().zip(&trace.layers).enumerate() {
                assert_relative(&format!("{name}: layer {i}, norms"), &norms(rows), &layer.out_norm);
                let last = &rows[rows.len() - layer.out_last_token.len()..];
                let (difference, size) = (max_abs_diff(last, &layer.out_last_token), layer.out_norm[tokens - 1]);
                assert!(difference <= 1e-4 * size, "{name}: layer {i}, last token: {difference} of {size}");
            }
        }
    }
}

fn assert_relative(what: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (row, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!((a - b).abs() <= 1e-4 * b.abs(), "{what}, token {row}: {a} instead of {b}");
    }
}

/// The residual stream after the embedding and after each layer, `[tokens, hidden_size]` each.
fn residual_streams(executor: &mut ReferenceExecutor, ids: &[u32]) -> Vec<Vec<f32>> {
    let sequence = executor.states().open().unwrap();
    let span = Span { sequence, start: 0, len: ids.len(), known_len: ids.len() };
    let final_hidden = executor.program().final_hidden;
    let mut streams: Vec<Vec<f32>> = Vec::new();
    let mut branches = 0;
    let mut residual = Slot(usize::MAX);
    let mut last_norm = None;
    let observer = &mut |op: &Op, slots: &[Vec<f32>]| match op {
        Op::Embed { out, .. } => {
            residual = *out;
            streams.push(slots[out.0].clone());
        }
        Op::Residual { into, .. } => {
            branches += 1;
            if branches % 2 == 0 {
                streams.push(slots[into.0].clone());
            }
        }
        // A factor on the stream ends the layer whose branches came before it (Gemma 4).
        Op::Scale { slot, .. } if *slot == residual => {
            assert_eq!(branches % 2, 0, "a layer is scaled between its branches");
            *streams.last_mut().unwrap() = slots[slot.0].clone();
        }
        Op::Norm { input, out, .. } if *out == final_hidden => last_norm = Some(slots[input.0].clone()),
        _ => {}
    };
    executor.step_observed(&Batch { tokens: ids, spans: &[span], logit_rows: &[] }, observer).unwrap();
    // What the final norm read is what the last layer left: nothing that changes the stream was overlooked.
    assert!(last_norm.as_ref() == streams.last(), "the trace misses an operation on the residual stream");
    streams
}

/// The prediction head on every position of a prompt, as the fixtures' README describes it.
#[test]
fn the_prediction_head_equals_its_reference_values() {
    let folder = tempfile::tempdir().unwrap();
    for name in MTP_MODELS {
        let model = open_model(&convert_fixture(name, Encoding::F32, folder.path()));
        let mut checked = 0;
        for golden in golden(name).sequences {
            let Some(mtp) = &golden.mtp else { continue };
            let (ids, count) = (&golden.input_ids, golden.input_ids.len() - 1);
            let mut executor = model.reference();
            let sequence = executor.states().open().unwrap();
            let span = Span { sequence, start: 0, len: ids.len(), known_len: ids.len() };
            executor.step(&Batch { tokens: ids, spans: &[span], logit_rows: &[] }).unwrap();
            let rows: Vec<usize> = (0..count).collect();
            let input = DraftInput { source: DraftSource::Step, rows: &rows, next: &ids[1..], logit_rows: &rows };
            let logits = executor.draft(&input).unwrap();
            let vocab_size = logits.len() / count;
            let difference = max_abs_diff(&logits[(count - 1) * vocab_size..], &mtp.last_logits);
            println!("{name}, prediction head, {} tokens: {difference:.2e}", ids.len());
            assert!(difference <= 2e-4, "{name}: {difference}");
            let same = logits
                .chunks_exact(vocab_size)
                .zip(&mtp.argmax_all)
                .filter(|(row, best)| cortiq_engine::sampler::argmax(row).unwrap() == **best)
                .count();
            // A position may be a tie.
            assert!(same + 1 >= count, "{name}: {same} of {count} best tokens");
            checked += 1;
        }
        assert_eq!(checked, 2, "{name}");
    }
}

#[test]
fn rope_frequencies_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let program = open_model(&convert_fixture(name, Encoding::F32, folder.path())).program();
        let golden = golden(name).rope;
        assert_eq!(program.ropes.len(), golden.tables().len(), "{name}");
        for (frequencies, factor) in golden.tables() {
            let close = |(a, b): (&f32, &f32)| (a - b).abs() <= 3e-7 * b.abs();
            let same = |ours: &[f32]| ours.len() == frequencies.len() && ours.iter().zip(frequencies).all(close);
            let equal = |ours: &RopeTable| {
                // Of longrope, transformers shows the factors of its last run.
                let long = ours.long.as_ref().is_some_and(|long| same(&long.inv_freq));
                (same(&ours.inv_freq) || long) && (ours.attention_factor - factor).abs() < 1e-6
            };
            assert!(program.ropes.iter().any(equal), "{name}: {frequencies:?} times {factor}");
        }
    }
}
