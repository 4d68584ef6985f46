//! Mixtures of experts on the gpu executor against the reference executor, on random models: batch sizes of every
//! class, several sequences, experts of mixed dtypes, ties, groups, biases and shared experts.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use cortiq_cmf::{Dtype, Moe};
use cortiq_conformance::{Model, Piece, divergence, max_abs_diff, step, test_gpus};
use cortiq_gpu::Precision;
use cortiq_model::{Executor, NamedShape, OwnedTensor, OwnedWeights, StateLimits, tensors_of};
use cortiq_quant::random_payload;

const LIMITS: StateLimits = StateLimits { max_positions: 512, max_bytes: 1 << 30 };

/// A random model whose FFNs are mixtures.
struct Case {
    shape: NamedShape,
    moe: Moe,
    hidden_act: &'static str,
    /// Width of the shared expert and whether it has a gate.
    shared: Option<(usize, bool)>,
    router: Dtype,
    /// Added to the scores for the choice.
    bias: Option<fn(usize) -> f32>,
    /// Experts `2 i` and `2 i + 1` have the same row of the router.
    ties: bool,
    /// Dtype of a matrix (0 gate, 1 up, 2 down) of an expert; the shared one comes after the others.
    dtype: fn(usize, usize) -> Dtype,
}

impl Case {
    /// 8 experts of 64 neurons, 2 chosen by softmax, q4.
    fn plain() -> Self {
        let shape = NamedShape {
            name: "random mixture",
            num_layers: 2,
            hidden_size: 96,
            heads: 3,
            kv_heads: 1,
            head_dim: 32,
            intermediate_size: 64,
            vocab_size: 101,
            tied: false,
            qk_norm: false,
            rope_theta: 1e4,
            experts: None,
            delta: None,
        };
        let moe = Moe {
            num_experts: 8,
            top_k: 2,
            moe_intermediate_size: 64,
            norm_topk_prob: true,
            shared_expert_intermediate_size: None,
            router_sigmoid: false,
            routed_scaling_factor: None,
            n_group: None,
            topk_group: None,
            norm_topk_eps: None,
        };
        Self {
            shape,
            moe,
            hidden_act: "silu",
            shared: None,
            router: Dtype::F32,
            bias: None,
            ties: false,
            dtype: |_, _| Dtype::Q4Tiled,
        }
    }

    /// Twelve experts; gate, up and down of each have different dtypes, and every dtype is met in every place.
    fn mixed() -> Self {
        let plain = Self::plain();
        let moe = Moe { num_experts: 12, top_k: 4, norm_topk_prob: false, ..plain.moe };
        let dtype = |expert: usize, part: usize| match (expert % 3, part) {
            (0, 0 | 1) => Dtype::ALL[expert % 12],
            _ => Dtype::ALL[(expert + 5 * part) % 12],
        };
        Self { moe, shared: Some((128, true)), router: Dtype::Bf16, dtype, ..plain }
    }

    /// Groups, a bias, a factor, GELU and a plain shared expert like the others.
    fn grouped() -> Self {
        let plain = Self::plain();
        let moe = Moe {
            num_experts: 12,
            top_k: 3,
            router_sigmoid: true,
            routed_scaling_factor: Some(1.7),
            n_group: Some(4),
            topk_group: Some(2),
            norm_topk_eps: Some(1e-20),
            ..plain.moe
        };
        let bias: fn(usize) -> f32 = |expert| 0.05 * (expert * 7 % 12) as f32 - 0.3;
        Self {
            moe,
            hidden_act: "gelu_tanh",
            shared: Some((64, false)),
            bias: Some(bias),
            dtype: |expert, _| if expert == 12 { Dtype::Q8Row } else { Dtype::Q1t },
            ..plain
        }
    }

    fn matrices(&self) -> Vec<(String, Dtype, usize, usize)> {
        let (hidden, experts) = (self.shape.hidden_size, self.moe.num_experts);
        let mut all = Vec::new();
        for layer in 0..self.shape.num_layers {
            let prefix = format!("model.layers.{layer}.mlp");
            all.push((format!("{prefix}.gate.weight"), self.router, experts, hidden));
            let mut expert = |name: &str, index: usize, width: usize| {
                let parts = [("gate", width, hidden), ("up", width, hidden), ("down", hidden, width)];
                for (part, (matrix, rows, cols)) in parts.into_iter().enumerate() {
                    let name = format!("{prefix}.{name}.{matrix}_proj.weight");
                    all.push((name, (self.dtype)(index, part), rows, cols));
                }
            };
            for index in 0..experts {
                expert(&format!("experts.{index}"), index, self.moe.moe_intermediate_size);
            }
            if let Some((width, gated)) = self.shared {
                expert("shared_expert", experts, width);
                if gated {
                    all.push((format!("{prefix}.shared_expert_gate.weight"), Dtype::Q8Row, 1, hidden));
                }
            }
        }
        for (name, dims) in tensors_of(&self.shape) {
            if let &[rows, cols] = dims.as_slice()
                && !name.contains(".mlp.")
            {
                all.push((name, Dtype::F32, rows, cols));
            }
        }
        all
    }

    fn model(&self) -> Model {
        let mut weights = OwnedWeights::new();
        for (seed, (name, dtype, rows, cols)) in self.matrices().into_iter().enumerate() {
            // A dtype that cannot hold the width gives way to f32.
            let payload = random_payload(dtype, rows, cols, seed as u64).map(|bytes| (dtype, bytes));
            let (dtype, mut bytes) =
                payload.unwrap_or_else(|_| (Dtype::F32, random_payload(Dtype::F32, rows, cols, seed as u64).unwrap()));
            if self.ties && name.ends_with("mlp.gate.weight") {
                let row = bytes.len() / rows;
                (0..rows / 2).for_each(|i| bytes.copy_within(2 * i * row..(2 * i + 1) * row, (2 * i + 1) * row));
            }
            weights.insert(name, OwnedTensor { dtype, shape: vec![rows as u32, cols as u32], bytes });
        }
        let mut vector = |name: String, values: Vec<f32>| {
            let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            weights.insert(name, OwnedTensor { dtype: Dtype::F32, shape: vec![values.len() as u32], bytes });
        };
        for (name, dims) in tensors_of(&self.shape).into_iter().filter(|(_, dims)| dims.len() == 1) {
            vector(name, (0..dims[0]).map(|i| 1.0 + (i * 17 % 13) as f32 / 40.0).collect());
        }
        if let Some(bias) = self.bias {
            for layer in 0..self.shape.num_layers {
                let name = format!("model.layers.{layer}.mlp.expert_bias");
                vector(name, (0..self.moe.num_experts).map(bias).collect());
            }
        }
        let mut header = self.shape.header();
        header.arch.moe = Some(self.moe.clone());
        if self.moe.n_group.is_some() {
            header.extensions.push("router_groups".to_owned());
        }
        header.arch.hidden_act = self.hidden_act.to_owned();
        Model { header, weights: Arc::new(weights) }
    }
}

fn tokens(count: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 37 + 11) as u32 % 101).collect()
}

/// Logits of steps of several sizes: fresh sequences of one span each, then three sequences in one step, then each
/// of them one token further.
fn all_steps(executor: &mut dyn Executor, sizes: &[usize]) -> Vec<Vec<f32>> {
    let mut logits = Vec::new();
    for &size in sizes {
        let sequence = executor.states().open().unwrap();
        let ids = tokens(size);
        logits.extend(step(executor, &[Piece { sequence, start: 0, tokens: &ids, known_len: size }]));
        executor.states().close(sequence).unwrap();
    }
    let open: Vec<_> = [3, 1, 20].map(|len| (executor.states().open().unwrap(), len)).to_vec();
    let ids = tokens(30);
    let pieces = |from: fn(usize) -> usize, to: fn(usize) -> usize| -> Vec<Piece<'_>> {
        let piece = |&(sequence, len): &(_, usize)| Piece {
            sequence,
            start: from(len),
            tokens: &ids[from(len)..to(len)],
            known_len: to(len),
        };
        open.iter().map(piece).collect()
    };
    logits.extend(step(executor, &pieces(|_| 0, |len| len)));
    logits.extend(step(executor, &pieces(|len| len, |len| len + 1)));
    open.iter().for_each(|&(sequence, _)| executor.states().close(sequence).unwrap());
    logits
}

const SIZES: [usize; 6] = [1, 2, 5, 31, 40, 70];

fn check_exact(what: &str, case: &Case) {
    let model = case.model();
    let expected = all_steps(&mut model.reference(), &SIZES);
    let ours = all_steps(&mut model.gpu(Precision::Exact, LIMITS), &SIZES);
    let differences: Vec<f32> = expected.iter().zip(&ours).map(|(a, b)| max_abs_diff(a, b)).collect();
    println!("{what}: {differences:?}");
    assert!(expected.iter().flatten().all(|logit| logit.is_finite()));
    assert!(differences.iter().all(|difference| *difference <= 2e-3), "{what}: {differences:?}");
}

fn check_fast(what: &str, case: &Case, sizes: &[usize]) {
    let model = case.model();
    let expected = all_steps(&mut model.reference(), sizes);
    for gpu in test_gpus() {
        let what = format!("{what}, matrix units {:?}", gpu.caps().coop);
        let ours = all_steps(&mut model.gpu_on(gpu, Precision::Fast, LIMITS), sizes);
        check_divergence(&what, case.shape.vocab_size, &expected, &ours);
    }
}

fn check_divergence(what: &str, vocab_size: usize, expected: &[Vec<f32>], ours: &[Vec<f32>]) {
    let rows = |logits: &[Vec<f32>]| -> Vec<Vec<f32>> {
        logits.iter().flat_map(|step| step.chunks(vocab_size)).map(<[f32]>::to_vec).collect()
    };
    let all: Vec<_> = rows(expected).iter().zip(rows(ours)).map(|(a, b)| divergence(a, &b)).collect();
    let mean_kl = all.iter().map(|d| d.kl).sum::<f64>() / all.len() as f64;
    let cosine = all.iter().map(|d| d.cosine).fold(1.0, f64::min);
    println!("{what}: mean KL {mean_kl:.2e}, least cosine {cosine:.6}");
    assert!(mean_kl <= 2e-3 && cosine >= 0.999, "{what}: mean KL {mean_kl}, least cosine {cosine}");
}

#[test]
fn one_layout() {
    check_exact("one layout", &Case::plain());
}

#[test]
fn mixed_dtypes() {
    check_exact("mixed dtypes", &Case::mixed());
}

#[test]
fn groups_and_bias() {
    check_exact("groups and bias", &Case::grouped());
}

#[test]
fn groups_without_bias() {
    let grouped = Case::grouped();
    let moe = Moe { router_sigmoid: false, ..grouped.moe };
    check_exact("groups without bias", &Case { moe, bias: None, dtype: |_, _| Dtype::Q1s, ..grouped });
}

#[test]
fn of_equal_experts_the_lower_index_is_chosen() {
    let plain = Case::plain();
    let moe = Moe { top_k: 3, ..plain.moe };
    check_exact("ties", &Case { moe, ties: true, ..plain });
}

/// More experts than the choice compares at once, with ties across and within its sets.
#[test]
fn many_experts() {
    let many = |num_experts, top_k| Moe { num_experts, top_k, moe_intermediate_size: 32, ..Case::plain().moe };
    check_exact("70 experts", &Case { moe: many(70, 5), ties: true, shared: Some((32, true)), ..Case::plain() });
    check_exact("40 of 70 experts", &Case { moe: many(70, 40), ..Case::plain() });
}

/// More experts than a workgroup usually has threads, in groups that are no multiple of 4.
#[test]
fn many_experts_in_groups() {
    let grouped = Case::grouped();
    let moe = Moe { num_experts: 290, top_k: 7, n_group: Some(10), topk_group: Some(3), ..grouped.moe };
    let moe = Moe { moe_intermediate_size: 32, ..moe };
    let bias: fn(usize) -> f32 = |expert| 0.01 * (expert * 37 % 290) as f32 - 1.0;
    check_exact("290 experts", &Case { moe, bias: Some(bias), shared: None, dtype: |_, _| Dtype::Q8Row, ..grouped });
}

#[test]
fn widths_that_are_no_multiple_of_32() {
    let plain = Case::plain();
    let shape = NamedShape { hidden_size: 52, head_dim: 12, ..plain.shape };
    let moe = Moe { moe_intermediate_size: 37, ..plain.moe };
    let dtype = |expert: usize, _: usize| if expert.is_multiple_of(2) { Dtype::Q8_2f } else { Dtype::F16 };
    check_exact("odd widths", &Case { shape, moe, shared: Some((45, true)), dtype, ..plain });
}

/// Every expert is chosen, so that no rounding changes the choice.
#[test]
fn fast_with_mixed_dtypes() {
    let mixed = Case::mixed();
    let moe = Moe { top_k: 12, ..mixed.moe };
    check_fast("fast, mixed dtypes", &Case { moe, ..mixed }, &SIZES);
}

/// Rows and sets of jobs that the lanes of a team take several turns for.
#[test]
fn fast_with_long_rows() {
    let mixed = Case::mixed();
    let shape = NamedShape { num_layers: 1, hidden_size: 1056, ..mixed.shape };
    let moe = Moe { top_k: 12, moe_intermediate_size: 256, ..mixed.moe };
    check_fast("fast, long rows", &Case { shape, moe, shared: Some((256, true)), ..mixed }, &[1, 2]);
}

/// The bias alone decides, so that no rounding changes the choice.
#[test]
fn fast_with_a_choice() {
    for dtype in [(|_, _| Dtype::Q4Block) as fn(usize, usize) -> Dtype, |_, _| Dtype::Q1t, |_, _| Dtype::Q8_2f] {
        let bias: fn(usize) -> f32 = |expert| 4.0 * (expert * 7 % 12) as f32;
        let case = Case { bias: Some(bias), dtype, shared: Some((64, true)), ..Case::grouped() };
        check_fast("fast, a choice", &case, &SIZES);
    }
}
