//! Gated delta nets, short convolutions and latent attention on the gpu executor against the reference executor: sizes
//! that no fixture has, and several sequences of different lengths per step whose state is carried on.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use cortiq_cmf::{Dtype, Header, LayerType, Mla, ModelArch, QuantType};
use cortiq_conformance::{Model, Piece, divergence, max_abs_diff, step, test_gpu};
use cortiq_gpu::{GpuExecutor, GpuOptions, Precision};
use cortiq_model::{Executor, Op, OwnedTensor, OwnedWeights, SequenceId, StateLimits, VectorId};
use cortiq_quant::random_payload;
use cortiq_reference::ReferenceExecutor;

const LIMITS: StateLimits = StateLimits { max_positions: 512, max_bytes: 1 << 30 };
const HIDDEN: usize = 64;
const VOCAB: usize = 101;

/// New tokens of each sequence, step by step: all classes of batches, first and later spans, spans shorter than a
/// convolution, and steps that some sequences miss.
const STEPS: [[usize; 5]; 6] =
    [[1, 2, 3, 31, 70], [1, 1, 1, 1, 1], [3, 1, 2, 5, 1], [0, 1, 0, 0, 0], [33, 2, 1, 40, 9], [0, 0, 0, 0, 1]];

/// Tensors of a model with random values.
struct Builder {
    weights: OwnedWeights,
    dtype: Dtype,
    seed: u64,
}

impl Builder {
    fn new(dtype: Dtype) -> Self {
        let mut new = Self { weights: OwnedWeights::new(), dtype: Dtype::F32, seed: 11 };
        new.matrix("model.embed_tokens", VOCAB, HIDDEN);
        new.matrix("lm_head", VOCAB, HIDDEN);
        new.norm("model.norm", HIDDEN);
        new.dtype = dtype;
        new
    }

    fn insert(&mut self, name: String, shape: &[usize], dtype: Dtype, bytes: Vec<u8>) {
        let shape = shape.iter().map(|&size| u32::try_from(size).unwrap()).collect();
        self.weights.insert(name, OwnedTensor { dtype, shape, bytes });
    }

    fn matrix(&mut self, name: &str, rows: usize, cols: usize) {
        self.seed += 1;
        let payload = |dtype| random_payload(dtype, rows, cols, self.seed);
        // A width that the dtype cannot hold falls back.
        let (dtype, bytes) = match payload(self.dtype) {
            Ok(bytes) => (self.dtype, bytes),
            Err(_) => (Dtype::F32, payload(Dtype::F32).unwrap()),
        };
        self.insert(format!("{name}.weight"), &[rows, cols], dtype, bytes);
    }

    fn vector(&mut self, name: &str, values: impl Iterator<Item = f32>) {
        let values: Vec<f32> = values.collect();
        let bytes = values.iter().copied().flat_map(f32::to_le_bytes).collect();
        self.insert(name.to_owned(), &[values.len()], Dtype::F32, bytes);
    }

    fn norm(&mut self, name: &str, len: usize) {
        self.vector(&format!("{name}.weight"), (0..len).map(|i| 0.8 + (i * 7 % 11) as f32 / 20.0));
    }

    fn taps(&mut self, name: &str, channels: usize, kernel: usize) {
        self.seed += 1;
        let bytes = random_payload(Dtype::F32, channels, kernel, self.seed).unwrap();
        self.insert(format!("{name}.weight"), &[channels, 1, kernel], Dtype::F32, bytes);
    }

    /// What surrounds the mixer of a layer.
    fn layer(&mut self, index: usize) -> String {
        let layer = format!("model.layers.{index}");
        self.norm(&format!("{layer}.input_layernorm"), HIDDEN);
        self.norm(&format!("{layer}.post_attention_layernorm"), HIDDEN);
        self.matrix(&format!("{layer}.mlp.gate_proj"), 32, HIDDEN);
        self.matrix(&format!("{layer}.mlp.up_proj"), 32, HIDDEN);
        self.matrix(&format!("{layer}.mlp.down_proj"), HIDDEN, 32);
        layer
    }

    fn finish(self, arch: ModelArch) -> Model {
        Model { header: Header::new(arch, QuantType::F32), weights: Arc::new(self.weights) }
    }
}

fn arch(layers: Vec<LayerType>, heads: usize) -> ModelArch {
    ModelArch {
        arch_name: "random".to_owned(),
        hidden_size: HIDDEN,
        intermediate_size: 32,
        num_layers: layers.len(),
        num_attention_heads: heads,
        num_kv_heads: heads,
        head_dim: 16,
        vocab_size: VOCAB,
        layer_types: layers,
        rms_norm_eps: 1e-6,
        rope_theta: 1e4,
        max_position_embeddings: 512,
        ..ModelArch::default()
    }
}

/// Sizes of a gated delta net.
#[derive(Clone, Copy)]
struct Delta {
    key_heads: usize,
    value_heads: usize,
    key_dim: usize,
    value_dim: usize,
    kernel: usize,
}

fn delta_model(sizes: Delta, dtype: Dtype) -> Model {
    let Delta { key_heads, value_heads, key_dim, value_dim, kernel } = sizes;
    let (values, channels) = (value_heads * value_dim, 2 * key_heads * key_dim + value_heads * value_dim);
    let mut b = Builder::new(dtype);
    for index in 0..2 {
        let net = format!("{}.linear_attn", b.layer(index));
        b.matrix(&format!("{net}.in_proj_qkv"), channels, HIDDEN);
        b.matrix(&format!("{net}.in_proj_z"), values, HIDDEN);
        b.matrix(&format!("{net}.in_proj_a"), value_heads, HIDDEN);
        b.matrix(&format!("{net}.in_proj_b"), value_heads, HIDDEN);
        b.matrix(&format!("{net}.out_proj"), HIDDEN, values);
        b.taps(&format!("{net}.conv1d"), channels, kernel);
        // From a state that hardly fades to one that goes at once, on both sides of the linear part of softplus.
        b.vector(&format!("{net}.A_log"), (0..value_heads).map(|h| [-4.0, -2.5, 0.3][h % 3]));
        b.vector(&format!("{net}.dt_bias"), (0..value_heads).map(|h| [1.0, -9.0, 25.0, 0.1][h % 4]));
        b.norm(&format!("{net}.norm"), value_dim);
    }
    b.finish(ModelArch {
        linear_conv_kernel_dim: Some(kernel),
        linear_num_key_heads: Some(key_heads),
        linear_num_value_heads: Some(value_heads),
        linear_key_head_dim: Some(key_dim),
        linear_value_head_dim: Some(value_dim),
        ..arch(vec![LayerType::LinearAttention; 2], 1)
    })
}

fn conv_model(kernel: usize) -> Model {
    let mut b = Builder::new(Dtype::F32);
    for index in 0..2 {
        let conv = format!("{}.short_conv", b.layer(index));
        b.matrix(&format!("{conv}.in_proj"), 3 * HIDDEN, HIDDEN);
        b.taps(&format!("{conv}.conv"), HIDDEN, kernel);
        b.matrix(&format!("{conv}.out_proj"), HIDDEN, HIDDEN);
    }
    b.finish(arch(vec![LayerType::ShortConv; 2], 1))
}

/// Sizes of latent attention.
#[derive(Clone, Copy)]
struct Latent {
    heads: usize,
    nope_dim: usize,
    rope_dim: usize,
    value_dim: usize,
    kv_rank: usize,
    q_rank: Option<usize>,
    interleaved: bool,
}

fn latent_model(sizes: Latent, dtype: Dtype) -> Model {
    let Latent { heads, nope_dim, rope_dim, value_dim, kv_rank, q_rank, interleaved } = sizes;
    let mut b = Builder::new(dtype);
    for index in 0..2 {
        let attention = format!("{}.self_attn", b.layer(index));
        let q_width = heads * (nope_dim + rope_dim);
        match q_rank {
            None => b.matrix(&format!("{attention}.q_proj"), q_width, HIDDEN),
            Some(rank) => {
                b.matrix(&format!("{attention}.q_a_proj"), rank, HIDDEN);
                b.norm(&format!("{attention}.q_a_layernorm"), rank);
                b.matrix(&format!("{attention}.q_b_proj"), q_width, rank);
            }
        }
        b.matrix(&format!("{attention}.kv_a_proj_with_mqa"), kv_rank + rope_dim, HIDDEN);
        b.norm(&format!("{attention}.kv_a_layernorm"), kv_rank);
        b.matrix(&format!("{attention}.kv_b_proj"), heads * (nope_dim + value_dim), kv_rank);
        b.matrix(&format!("{attention}.o_proj"), HIDDEN, heads * value_dim);
    }
    let mla = Mla {
        q_lora_rank: q_rank,
        kv_lora_rank: kv_rank,
        qk_nope_head_dim: nope_dim,
        qk_rope_head_dim: rope_dim,
        v_head_dim: value_dim,
    };
    let arch = arch(vec![LayerType::FullAttention; 2], heads);
    let mut model = b.finish(ModelArch { mla: Some(mla), rope_interleaved: interleaved, ..arch });
    model.header.extensions = ["mla", "rope_interleaved"].map(str::to_owned).to_vec();
    model
}

/// Logits of every row of [`STEPS`]; every sequence has tokens of its own.
fn run(executor: &mut dyn Executor) -> Vec<Vec<f32>> {
    let open: Vec<SequenceId> = STEPS[0].iter().map(|_| executor.states().open().unwrap()).collect();
    let text = |sequence: usize| (0..150).map(|i| ((i * 37 + sequence * 29 + i * i % 7) % VOCAB) as u32).collect();
    let texts: Vec<Vec<u32>> = (0..open.len()).map(text).collect();
    let mut starts = vec![0; open.len()];
    let mut rows = Vec::new();
    for (number, lengths) in STEPS.iter().enumerate() {
        // The order of the sequences is another in every step.
        let order = (0..open.len()).map(|i| (i + number) % open.len()).filter(|&i| lengths[i] > 0);
        let piece = |i: usize| Piece {
            sequence: open[i],
            start: starts[i],
            tokens: &texts[i][starts[i]..starts[i] + lengths[i]],
            known_len: 0,
        };
        let pieces: Vec<Piece<'_>> = order.map(piece).collect();
        let logits = step(executor, &pieces);
        rows.extend(logits.iter().flat_map(|piece| piece.chunks_exact(VOCAB)).map(<[f32]>::to_vec));
        starts.iter_mut().zip(lengths).for_each(|(start, len)| *start += len);
    }
    rows
}

fn check_exact(what: &str, model: &Model) {
    let want = run(&mut model.reference());
    assert_equal(what, &want, &run(&mut model.gpu(Precision::Exact, LIMITS)));
}

/// Row by row. What f32 sums may differ by follows the size of the logits.
fn assert_equal(what: &str, want: &[Vec<f32>], got: &[Vec<f32>]) {
    let size = want.iter().flatten().fold(0.0f32, |top, x| top.max(x.abs()));
    let differences: Vec<f32> = want.iter().zip(got).map(|(a, b)| max_abs_diff(a, b)).collect();
    let worst = differences.iter().copied().fold(0.0, f32::max);
    println!("{what}: {worst:.2e} of {size:.2}");
    assert!(size.is_finite() && size > 0.1, "{what}: logits up to {size}");
    let first = differences.iter().position(|d| *d > 2e-4 * size);
    assert!(worst <= 2e-4 * size, "{what}: {worst} of {size}, first at row {first:?}");
}

/// The fast mode within the bar of docs/design.md §7.
fn check_fast(what: &str, model: &Model) {
    let want = run(&mut model.reference());
    let got = run(&mut model.gpu(Precision::Fast, LIMITS));
    let rows: Vec<_> = want.iter().zip(&got).map(|(a, b)| divergence(a, b)).collect();
    let kl = rows.iter().map(|d| d.kl).sum::<f64>() / rows.len() as f64;
    let cosine = rows.iter().map(|d| d.cosine).fold(1.0, f64::min);
    println!("{what}: mean KL {kl:.2e}, least cosine {cosine:.7}");
    assert!(kl <= 2e-3 && cosine >= 0.999, "{what}: mean KL {kl}, least cosine {cosine}");
}

macro_rules! delta_tests {
    ($($name:ident: $key_heads:literal $value_heads:literal $key_dim:literal $value_dim:literal $kernel:literal,)*) => {
        mod delta {
            $(#[test]
            fn $name() {
                let sizes = super::Delta {
                    key_heads: $key_heads,
                    value_heads: $value_heads,
                    key_dim: $key_dim,
                    value_dim: $value_dim,
                    kernel: $kernel,
                };
                super::check_exact(stringify!($name), &super::delta_model(sizes, super::Dtype::F32));
            })*
        }
    };
}

delta_tests! {
    two_values_per_key: 2 4 32 32 4,
    three_values_per_key_and_odd_widths: 2 6 12 20 2,
    one_to_one: 3 3 8 4 3,
    wide_values: 1 2 16 256 4,
    as_published: 1 2 128 128 4,
    too_large_for_one_workgroup: 1 2 256 256 4,
    without_a_ring: 2 4 16 16 1,
    long_taps: 1 2 16 32 7,
}

/// Activations of two int8 codes, in steps of all classes and with several sequences; decays that keep an error.
#[test]
fn delta_in_the_fast_mode() {
    let sizes = Delta { key_heads: 2, value_heads: 4, key_dim: 32, value_dim: 32, kernel: 4 };
    for dtype in [Dtype::Q8Row, Dtype::Q8_2f, Dtype::Q4Tiled, Dtype::Q1t] {
        check_fast(&format!("delta, fast, {}", dtype.name()), &delta_model(sizes, dtype));
    }
}

#[test]
fn delta_of_odd_sizes_is_refused_by_name() {
    let sizes = Delta { key_heads: 1, value_heads: 2, key_dim: 6, value_dim: 8, kernel: 4 };
    let model = delta_model(sizes, Dtype::F32);
    let made = GpuExecutor::new(test_gpu(), model.program(), Arc::clone(&model.weights), GpuOptions::new(LIMITS));
    let error = made.err().unwrap().to_string();
    assert!(error.contains("gated delta heads of 6 by 8 dimensions"), "{error}");
}

#[test]
fn short_convolutions() {
    for kernel in [1, 2, 3, 5, 12] {
        check_exact(&format!("{kernel} taps"), &conv_model(kernel));
    }
}

const LATENT: Latent =
    Latent { heads: 4, nope_dim: 32, rope_dim: 16, value_dim: 32, kv_rank: 64, q_rank: None, interleaved: false };

#[test]
fn latent_attention() {
    let cases = [
        ("plain", LATENT),
        ("compressed queries", Latent { q_rank: Some(40), interleaved: true, ..LATENT }),
        ("odd widths", Latent { heads: 5, nope_dim: 12, rope_dim: 4, value_dim: 17, kv_rank: 36, ..LATENT }),
        ("as published", Latent { heads: 3, nope_dim: 128, rope_dim: 64, value_dim: 128, kv_rank: 512, ..LATENT }),
        ("one head", Latent { heads: 1, kv_rank: 160, value_dim: 70, ..LATENT }),
    ];
    for (what, sizes) in cases {
        check_exact(what, &latent_model(sizes, Dtype::F32));
    }
}

#[test]
fn latent_attention_on_every_dtype() {
    for dtype in Dtype::ALL {
        let sizes = Latent { heads: 2, ..LATENT };
        check_exact(dtype.name(), &latent_model(sizes, dtype));
    }
}

#[test]
fn latent_attention_with_heads_off() {
    let model = latent_model(LATENT, Dtype::F32);
    let mut program = model.program();
    let mask = VectorId(program.vectors.len());
    program.vectors.push(vec![1.0, 0.0, 1.0, 0.0]);
    for op in &mut program.ops {
        if let Op::MlaAttention(op) = op {
            op.head_mask = Some(mask);
        }
    }
    let weights = || Arc::clone(&model.weights);
    let want = run(&mut ReferenceExecutor::new(program.clone(), weights(), LIMITS).unwrap());
    assert_ne!(want, run(&mut model.reference()), "the mask does nothing");
    let options = GpuOptions::new(LIMITS).with_precision(Precision::Exact);
    let mut gpu = GpuExecutor::new(test_gpu(), program, weights(), options).unwrap();
    assert_equal("heads off", &want, &run(&mut gpu));
}

/// Keys in f16; the weights are f16, whose products use f32 activations in both.
#[test]
fn latent_attention_in_the_fast_mode() {
    check_fast("latent, fast", &latent_model(LATENT, Dtype::F16));
}
