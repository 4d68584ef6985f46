//! The cpu executor in exact mode against the reference executor on the same file, for every dtype.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cortiq_cmf::Dtype;
use cortiq_conformance::{MODELS, convert_fixture, divergence, golden, random_model};
use cortiq_engine::{Engine, EngineOptions, ExecutorKind};
use cortiq_model::{NAMED_SHAPES, NamedShape, Precision};
use cortiq_quant::Encoding;

fn options(executor: ExecutorKind, threads: usize) -> EngineOptions {
    EngineOptions { executor, threads: Some(threads), precision: Precision::Exact, ..EngineOptions::default() }
}

/// Mean KL ≤ 2e-3 and every cosine ≥ 0.999 over the rows of two sets of logits.
fn assert_close(what: &str, exact: &[Vec<f32>], other: &[Vec<f32>]) {
    assert_eq!(exact.len(), other.len());
    let rows: Vec<_> = exact.iter().zip(other).map(|(a, b)| divergence(a, b)).collect();
    let mean_kl = rows.iter().map(|d| d.kl).sum::<f64>() / rows.len() as f64;
    let cosine = rows.iter().map(|d| d.cosine).fold(1.0, f64::min);
    println!("{what}: mean KL {mean_kl:.2e}, least cosine {cosine:.7}");
    assert!(mean_kl <= 2e-3 && cosine >= 0.999, "{what}: mean KL {mean_kl}, least cosine {cosine}");
}

fn quantised(encoding: Encoding) {
    let folder = tempfile::tempdir().unwrap();
    for name in MODELS {
        let file = convert_fixture(name, encoding.clone(), folder.path());
        let ids = golden(name).sequences.swap_remove(2).input_ids;
        let mut reference = Engine::open(&file, &options(ExecutorKind::Reference, 1)).unwrap();
        let mut cpu = Engine::open(&file, &options(ExecutorKind::Cpu, 2)).unwrap();
        assert_close(
            &format!("{name} {encoding:?}"),
            &reference.logits(&ids, true).unwrap(),
            &cpu.logits(&ids, true).unwrap(),
        );
    }
}

macro_rules! quantised_tests {
    ($($name:ident: $encoding:expr,)*) => { $(#[test] fn $name() { quantised($encoding); })* };
}

quantised_tests! {
    f16: Encoding::F16,
    bf16: Encoding::Bf16,
    q8: Encoding::Q8Row,
    q8_2f: Encoding::Q8_2f,
    q4: Encoding::Q4Block,
    q4t: Encoding::Q4Tiled,
    vbit: Encoding::Vbit { mean_milli_bits: 4250 },
    q1: Encoding::Q1,
}

/// Odd sizes: widths that are no multiple of 32 or of a vector, few rows, many heads.
fn odd_shapes() -> Vec<NamedShape> {
    let base = NamedShape {
        name: "odd",
        num_layers: 2,
        hidden_size: 96,
        heads: 3,
        kv_heads: 1,
        head_dim: 32,
        intermediate_size: 160,
        vocab_size: 101,
        tied: false,
        qk_norm: true,
        rope_theta: 1e4,
        experts: None,
        delta: None,
    };
    vec![
        base,
        NamedShape { hidden_size: 52, head_dim: 10, intermediate_size: 37, tied: true, ..base },
        NamedShape { hidden_size: 32, heads: 8, kv_heads: 4, head_dim: 2, vocab_size: 33, qk_norm: false, ..base },
        NamedShape { num_layers: 1, hidden_size: 64, heads: 1, head_dim: 128, intermediate_size: 32, ..base },
    ]
}

#[test]
fn every_dtype_on_random_models() {
    for (i, shape) in odd_shapes().iter().enumerate() {
        for dtype in Dtype::ALL {
            let model = random_model(shape, dtype, 7 + i as u64);
            let ids: Vec<u32> = (0..40).map(|j| (j * 37 + 11) % shape.vocab_size as u32).collect();
            let run = |executor, threads| {
                let weights = model.weights.clone();
                let mut engine = Engine::from_weights(&model.header, weights, &options(executor, threads)).unwrap();
                engine.logits(&ids, true).unwrap()
            };
            let reference = run(ExecutorKind::Reference, 1);
            assert!(reference.iter().flatten().all(|l| l.is_finite()));
            for threads in [1, 3] {
                let what = format!("shape {i}, {}, {threads} threads", dtype.name());
                assert_close(&what, &reference, &run(ExecutorKind::Cpu, threads));
            }
        }
    }
}

#[test]
fn named_shapes_describe_runnable_models() {
    // The large ones are only lowered in `cortiq bench`; here the smallest must run.
    let shape = NamedShape { num_layers: 2, vocab_size: 512, ..NAMED_SHAPES[0] };
    let model = random_model(&shape, Dtype::Q4Tiled, 3);
    let mut engine = Engine::from_weights(&model.header, model.weights, &options(ExecutorKind::Cpu, 2)).unwrap();
    assert_eq!(engine.logits(&[1, 2, 3], false).unwrap()[0].len(), 512);
}
