//! The cpu executor in its fast mode against the reference executor on the same file: mean KL ≤ 2e-3 and every cosine
//! ≥ 0.999, one token at a time, a few at a time, and all at once.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cortiq_conformance::{Divergence, Model, alone, convert_fixture, divergence, golden, open_model};
use cortiq_cpu::{CpuOptions, InputBits, Isa};
use cortiq_model::Precision;
use cortiq_quant::Encoding;

/// Divergence of every position.
fn compare(model: &Model, ids: &[u32], options: CpuOptions, chunk: usize) -> Vec<Divergence> {
    let exact = alone(&mut model.reference(), ids, 64);
    let ours = alone(&mut model.cpu_with(options), ids, chunk);
    let vocab = exact.len() / ids.len();
    exact.chunks(vocab).zip(ours.chunks(vocab)).map(|(a, b)| divergence(a, b)).collect()
}

fn check(name: &str, encoding: &Encoding, bits: &[InputBits]) {
    let folder = tempfile::tempdir().unwrap();
    let model = open_model(&convert_fixture(name, encoding.clone(), folder.path()));
    let ids = golden(name).sequences.swap_remove(2).input_ids;
    for (isa, input_bits) in Isa::available().into_iter().flat_map(|isa| bits.iter().map(move |bits| (isa, *bits))) {
        for chunk in [1, 5, 64] {
            let precision = Precision::Fast;
            let options = CpuOptions { threads: 2, isa, precision, input_bits, ..CpuOptions::default() };
            let rows = compare(&model, &ids, options, chunk);
            let mean_kl = rows.iter().map(|d| d.kl).sum::<f64>() / rows.len() as f64;
            let cosine = rows.iter().map(|d| d.cosine).fold(1.0, f64::min);
            let what = format!("{name} {encoding:?}, {}, {input_bits:?} bits, {chunk} at a time", isa.name());
            println!("{what}: mean KL {mean_kl:.2e}, least cosine {cosine:.6}");
            assert!(mean_kl <= 2e-3 && cosine >= 0.999, "{what}: mean KL {mean_kl}, least cosine {cosine}");
        }
    }
}

const SIXTEEN: [InputBits; 1] = [InputBits::Sixteen];

/// Models of which 8 bits keep the bar too. Others flip a router or have small norms after their projections.
const BOTH: [InputBits; 2] = [InputBits::Eight, InputBits::Sixteen];

macro_rules! fast {
    ($($name:ident: $models:expr, $encoding:expr, $bits:expr;)*) => {
        $(#[test] fn $name() { $models.iter().for_each(|model: &&str| check(model, &$encoding, &$bits)); })*
    };
}

fast! {
    q8: ["llama_gqa", "qwen3", "gemma2"], Encoding::Q8Row, BOTH;
    q8_2f: ["llama_gqa", "qwen3"], Encoding::Q8_2f, SIXTEEN;
    q4: ["llama_gqa", "qwen3"], Encoding::Q4Block, SIXTEEN;
    q4t: ["llama_gqa", "qwen3"], Encoding::Q4Tiled, SIXTEEN;
    vbit: ["llama_gqa", "qwen3"], Encoding::Vbit { mean_milli_bits: 4250 }, SIXTEEN;
    q1: ["llama_gqa"], Encoding::Q1, SIXTEEN;
    q1s: ["llama_gqa"], Encoding::Q1s { keep: 0.01 }, SIXTEEN;
    q1t: ["llama_gqa"], Encoding::Q1t(cortiq_quant::Q1tOptions::default()), SIXTEEN;
    delta_nets: ["qwen3_5", "qwen3_next"], Encoding::Q8Row, SIXTEEN;
    short_convolutions: ["lfm2"], Encoding::Q8Row, SIXTEEN;
    experts: ["mixtral", "qwen3_moe"], Encoding::Q8Row, SIXTEEN;
    latent_attention: ["deepseek_v3"], Encoding::Q8Row, SIXTEEN;
}
