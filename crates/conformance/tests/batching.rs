//! What must not change a result: chunking, neighbours in the batch, threads, snapshots, cache hits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use cortiq_cmf::Dtype;
use cortiq_conformance::{RandomModel, random_model};
use cortiq_cpu::{CpuExecutor, CpuOptions};
use cortiq_model::{Batch, Executor, ModelError, NamedShape, Precision, Program, Span, StateLimits};
use cortiq_reference::ReferenceExecutor;

const VOCAB: usize = 97;

fn model() -> RandomModel {
    let shape = NamedShape {
        name: "batching",
        num_layers: 2,
        hidden_size: 64,
        heads: 4,
        kv_heads: 2,
        head_dim: 16,
        intermediate_size: 96,
        vocab_size: VOCAB,
        tied: false,
        qk_norm: true,
        rope_theta: 1e4,
        experts: None,
        delta: None,
    };
    random_model(&shape, Dtype::Q8Row, 5)
}

fn limits() -> StateLimits {
    StateLimits { max_positions: 128, max_bytes: 1 << 24 }
}

fn executors() -> Vec<Box<dyn Executor>> {
    let RandomModel { header, weights } = model();
    let program = Program::from_weights(&header, &*weights).unwrap();
    let mut all: Vec<Box<dyn Executor>> =
        vec![Box::new(ReferenceExecutor::new(program.clone(), weights.clone(), limits()).unwrap())];
    for (threads, precision) in [1, 2, 4].into_iter().flat_map(|n| [(n, Precision::Exact), (n, Precision::Fast)]) {
        let options = CpuOptions { threads, precision, ..CpuOptions::default() };
        all.push(Box::new(CpuExecutor::new(program.clone(), Arc::clone(&weights) as _, limits(), options).unwrap()));
    }
    all
}

fn ids(salt: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 29 + salt * 17 + 3) % VOCAB as u32).collect()
}

/// Logits of every position of `tokens`, fed in chunks of `chunk`, in a fresh sequence.
fn run_alone(executor: &mut dyn Executor, tokens: &[u32], chunk: usize) -> Vec<u32> {
    let sequence = executor.states().open().unwrap();
    let mut bits = Vec::new();
    for (i, tokens) in tokens.chunks(chunk).enumerate() {
        let span = Span { sequence, start: i * chunk, len: tokens.len(), known_len: 0 };
        let rows: Vec<usize> = (0..tokens.len()).collect();
        let logits = executor.step(&Batch { tokens, spans: &[span], logit_rows: &rows }).unwrap();
        bits.extend(logits.iter().map(|l| l.to_bits()));
    }
    executor.states().close(sequence).unwrap();
    bits
}

#[test]
fn chunks_do_not_change_a_bit() {
    for mut executor in executors() {
        let tokens = ids(1, 70);
        let whole = run_alone(&mut *executor, &tokens, 70);
        for chunk in [1, 7, 33] {
            assert!(run_alone(&mut *executor, &tokens, chunk) == whole, "{}, chunks of {chunk}", executor.name());
        }
    }
}

#[test]
fn neighbours_in_the_batch_do_not_change_a_bit() {
    for mut executor in executors() {
        let prompts = [ids(1, 40), ids(2, 33), ids(3, 1)];
        let alone: Vec<_> = prompts.iter().map(|p| run_alone(&mut *executor, p, p.len())).collect();
        let spans: Vec<Span> = prompts
            .iter()
            .map(|p| Span { sequence: executor.states().open().unwrap(), start: 0, len: p.len(), known_len: 0 })
            .collect();
        let tokens = prompts.concat();
        let rows: Vec<usize> = (0..tokens.len()).collect();
        let logits = executor.step(&Batch { tokens: &tokens, spans: &spans, logit_rows: &rows }).unwrap();
        let together: Vec<u32> = logits.iter().map(|l| l.to_bits()).collect();
        assert!(together == alone.concat(), "{}", executor.name());
    }
}

#[test]
fn a_restored_snapshot_continues_as_if_nothing_had_happened() {
    for mut executor in executors() {
        let tokens = ids(4, 50);
        let whole = run_alone(&mut *executor, &tokens, 50);
        let sequence = executor.states().open().unwrap();
        let feed = |executor: &mut dyn Executor, sequence, start: usize, tokens: &[u32]| -> Vec<u32> {
            let span = Span { sequence, start, len: tokens.len(), known_len: 0 };
            let rows: Vec<usize> = (0..tokens.len()).collect();
            let logits = executor.step(&Batch { tokens, spans: &[span], logit_rows: &rows }).unwrap();
            logits.iter().map(|l| l.to_bits()).collect()
        };
        feed(&mut *executor, sequence, 0, &tokens[..37]);
        let snapshot = executor.states().snapshot(sequence).unwrap();
        feed(&mut *executor, sequence, 37, &ids(9, 20));
        executor.states().restore(sequence, snapshot).unwrap();
        let fork = executor.states().open().unwrap();
        executor.states().restore(fork, snapshot).unwrap();
        executor.states().release(snapshot).unwrap();
        for sequence in [sequence, fork] {
            let rest = feed(&mut *executor, sequence, 37, &tokens[37..]);
            assert!(rest[..] == whole[37 * VOCAB..], "{}", executor.name());
        }
        executor.states().truncate(fork, 10).unwrap();
        let rest = feed(&mut *executor, fork, 10, &tokens[10..]);
        assert!(rest[..] == whole[10 * VOCAB..], "{}", executor.name());
    }
}

#[test]
fn threads_do_not_change_a_bit() {
    let mut all = executors();
    let tokens = ids(6, 60);
    let results: Vec<_> = all[1..].iter_mut().map(|executor| run_alone(&mut **executor, &tokens, 60)).collect();
    // Exact and fast take turns.
    assert!(results.windows(3).all(|three| three[0] == three[2]));
}

#[test]
fn bad_batches_are_errors_and_leave_the_state_alone() {
    for mut executor in executors() {
        let sequence = executor.states().open().unwrap();
        let good = Span { sequence, start: 0, len: 2, known_len: 0 };
        executor.step(&Batch { tokens: &[1, 2], spans: &[good], logit_rows: &[] }).unwrap();
        let span = Span { sequence, start: 2, len: 1, known_len: 0 };
        let cases: [(&str, Batch<'_>); 8] = [
            ("no tokens", Batch { tokens: &[], spans: &[], logit_rows: &[] }),
            ("unknown id", Batch { tokens: &[VOCAB as u32], spans: &[span], logit_rows: &[] }),
            ("wrong start", Batch { tokens: &[1], spans: &[Span { start: 1, ..span }], logit_rows: &[] }),
            ("empty span", Batch { tokens: &[1], spans: &[Span { len: 0, ..span }], logit_rows: &[] }),
            ("uncovered token", Batch { tokens: &[1, 1], spans: &[span], logit_rows: &[] }),
            ("repeated sequence", Batch { tokens: &[1, 1], spans: &[span, span], logit_rows: &[] }),
            ("row outside", Batch { tokens: &[1], spans: &[span], logit_rows: &[1] }),
            ("rows unsorted", Batch { tokens: &[1, 1], spans: &[Span { len: 2, ..span }], logit_rows: &[1, 0] }),
        ];
        for (what, batch) in cases {
            assert!(executor.step(&batch).is_err(), "{what}");
            assert_eq!(executor.states().len(sequence).unwrap(), 2, "{what}");
        }
        let long = ids(1, 127);
        let span = Span { sequence, start: 2, len: 127, known_len: 0 };
        let error = executor.step(&Batch { tokens: &long, spans: &[span], logit_rows: &[] }).unwrap_err();
        assert!(matches!(error, ModelError::ContextFull { wanted: 129, limit: 128 }), "{error}");
    }
}
