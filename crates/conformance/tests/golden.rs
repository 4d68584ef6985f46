//! Every executor against the values that transformers computed (docs/design.md §7).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;

use cortiq_conformance::{DENSE_MODELS, convert_fixture, golden, max_abs_diff};
use cortiq_engine::{Engine, EngineOptions, ExecutorKind, GenerateOptions, SamplingParams};
use cortiq_model::{MappedWeights, Program};
use cortiq_quant::Encoding;

fn greedy(engine: &mut Engine, prompt: &[u32], count: usize) -> Vec<u32> {
    let mut sequence = engine.sequence().unwrap();
    let options =
        GenerateOptions { max_tokens: count, sampling: SamplingParams::greedy(), stop: Vec::new(), ignore_eos: true };
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
        /// Fails when a dense fixture has no test above.
        #[test]
        fn every_dense_model_is_tested() {
            assert_eq!([$(stringify!($model)),*], DENSE_MODELS);
        }
    };
}

golden_tests!(llama_gqa llama_tied_bias llama3_rope llama_linear_rope mistral_swa qwen2_bias qwen3 qwen3_yarn);

#[test]
fn rope_frequencies_are_those_of_transformers() {
    let folder = tempfile::tempdir().unwrap();
    for name in DENSE_MODELS {
        let path = convert_fixture(name, Encoding::F32, folder.path());
        let file = std::sync::Arc::new(cortiq_cmf::CmfFile::open(&path).unwrap());
        let program = Program::from_weights(file.header(), &MappedWeights::new(file.clone(), None)).unwrap();
        let golden = golden(name).rope;
        assert_eq!(program.ropes.len(), 1, "{name}");
        assert_eq!(program.ropes[0].inv_freq.len(), golden.inv_freq.len(), "{name}");
        for (ours, theirs) in program.ropes[0].inv_freq.iter().zip(&golden.inv_freq) {
            assert!((ours - theirs).abs() <= 3e-7 * theirs.abs(), "{name}: {ours} {theirs}");
        }
        assert!((program.ropes[0].attention_factor - golden.attention_scaling).abs() < 1e-6, "{name}");
    }
}
