//! Whole models on the gpu executor: exact mode against golden values, fast mode against the reference.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cortiq_cmf::Dtype;
use cortiq_conformance::{
    Model, WIDE, alone, convert_fixture, divergence, golden, max_abs_diff, open_model, random_model,
};
use cortiq_gpu::Precision;
use cortiq_model::StateLimits;
use cortiq_quant::Encoding;

const LIMITS: StateLimits = StateLimits { max_positions: 512, max_bytes: 1 << 30 };

fn fixture(name: &str, encoding: Encoding) -> (tempfile::TempDir, Model) {
    let folder = tempfile::tempdir().unwrap();
    let model = open_model(&convert_fixture(name, encoding, folder.path()));
    (folder, model)
}

fn check_exact(name: &str) {
    let (_folder, model) = fixture(name, Encoding::F32);
    let mut gpu = model.gpu(Precision::Exact, LIMITS);
    for sequence in golden(name).sequences {
        let logits = alone(&mut gpu, &sequence.input_ids, 512);
        let vocab = sequence.last_logits.len();
        let difference = max_abs_diff(&logits[logits.len() - vocab..], &sequence.last_logits);
        println!("{name}, {} tokens: {difference:.2e}", sequence.input_ids.len());
        assert!(difference <= 2e-3, "{name}, {} tokens: {difference}", sequence.input_ids.len());
    }
}

macro_rules! exact {
    ($($model:ident)*) => {
        mod exact { $(#[test] fn $model() { super::check_exact(stringify!($model)); })* }
    };
}

exact!(
    llama_gqa llama_tied_bias qwen3 gemma2 gemma3_text olmo2 phi3 mistral_swa smollm3
    mixtral qwen2_moe qwen3_moe lfm2 lfm2_moe qwen3_5 qwen3_5_moe qwen3_next deepseek_v3
);

/// Mean KL ≤ 2e-3 and every cosine ≥ 0.999 against the reference on the same file.
fn check_fast(name: &str, encoding: Encoding) {
    let (_folder, model) = fixture(name, encoding.clone());
    let mut gpu = model.gpu(Precision::Fast, LIMITS);
    let mut reference = model.reference();
    let ids = golden(name).sequences.swap_remove(2).input_ids;
    // One token at a time, a few at a time, and all at once take different kernels.
    for chunk in [1, 5, 64] {
        let (exact, ours) = (alone(&mut reference, &ids, 64), alone(&mut gpu, &ids, chunk));
        let vocab = exact.len() / ids.len();
        let rows: Vec<_> = exact.chunks(vocab).zip(ours.chunks(vocab)).map(|(a, b)| divergence(a, b)).collect();
        let mean_kl = rows.iter().map(|d| d.kl).sum::<f64>() / rows.len() as f64;
        let cosine = rows.iter().map(|d| d.cosine).fold(1.0, f64::min);
        println!("{name} {encoding:?}, {chunk} at a time: mean KL {mean_kl:.2e}, least cosine {cosine:.6}");
        assert!(mean_kl <= 2e-3 && cosine >= 0.999, "{name} {encoding:?}, {chunk} at a time: {mean_kl} {cosine}");
    }
}

macro_rules! fast {
    ($($name:ident: $model:literal $encoding:expr,)*) => {
        mod fast {
            use super::*;
            $(#[test] fn $name() { check_fast($model, $encoding); })*
        }
    };
}

fast! {
    f16: "llama_gqa" Encoding::F16,
    bf16: "llama_gqa" Encoding::Bf16,
    q8: "llama_gqa" Encoding::Q8Row,
    q8_2f: "llama_gqa" Encoding::Q8_2f,
    q4: "llama_gqa" Encoding::Q4Block,
    q4t: "qwen3" Encoding::Q4Tiled,
    vbit: "llama_gqa" Encoding::Vbit { mean_milli_bits: 4250 },
    q1: "llama_gqa" Encoding::Q1,
    q1s: "llama_gqa" Encoding::Q1s { keep: 0.01 },
    q8_gemma2: "gemma2" Encoding::Q8Row,
}

/// One token at a time takes one kernel for int8 and float projections together, five at a time take one each. The
/// fixture amplifies what int8 activations cost beyond the bar of [`check_fast`], as it does with weights that are off
/// by 0.5 %; both ways pack the same activations.
#[test]
fn delta_projections_in_one_kernel_are_those_in_two() {
    let (_folder, model) = fixture("qwen3_5", Encoding::Q8Row);
    let mut gpu = model.gpu(Precision::Fast, LIMITS);
    let ids = golden("qwen3_5").sequences.swap_remove(2).input_ids;
    let (few, one) = (alone(&mut gpu, &ids, 5), alone(&mut gpu, &ids, 1));
    let vocab = few.len() / ids.len();
    let rows: Vec<_> = few.chunks(vocab).zip(one.chunks(vocab)).map(|(a, b)| divergence(a, b)).collect();
    let mean_kl = rows.iter().map(|d| d.kl).sum::<f64>() / rows.len() as f64;
    let cosine = rows.iter().map(|d| d.cosine).fold(1.0, f64::min);
    println!("one against five at a time: mean KL {mean_kl:.2e}, least cosine {cosine:.6}");
    assert!(mean_kl <= 1e-4 && cosine >= 0.999, "mean KL {mean_kl}, least cosine {cosine}");
}

/// Rows of signs that are read four groups at a time.
#[test]
fn wide_rows_of_signs() {
    let random = random_model(&WIDE, Dtype::Q1, 5);
    let model = Model { header: random.header, weights: random.weights };
    let ids: Vec<u32> = (0..12).map(|i| (i * 37 + 11) % 101).collect();
    let (exact, ours) =
        (alone(&mut model.reference(), &ids, 12), alone(&mut model.gpu(Precision::Fast, LIMITS), &ids, 1));
    for (position, (a, b)) in exact.chunks(WIDE.vocab_size).zip(ours.chunks(WIDE.vocab_size)).enumerate() {
        let found = divergence(a, b);
        println!("position {position}: KL {:.2e}, cosine {:.6}", found.kl, found.cosine);
        assert!(found.kl <= 2e-3 && found.cosine >= 0.999, "position {position}: {} {}", found.kl, found.cosine);
    }
}
