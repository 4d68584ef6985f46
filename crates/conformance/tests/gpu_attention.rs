//! Attention on the gpu against softmax attention in f64: one row and many, ragged batches, windows, soft caps, groups
//! of heads that fill no tile, and contexts that are divided among workgroups.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cortiq_conformance::test_gpu;
use cortiq_gpu::Precision;
use cortiq_gpu::lab::{AttentionCase, Lab, Run};

/// Values in -1 .. 1.
fn noise(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect()
}

/// Shape of a case; `runs` are positions and rows of each sequence.
struct Shape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    softcap: Option<f32>,
    runs: &'static [(usize, usize)],
}

impl Shape {
    fn case(&self, precision: Precision) -> AttentionCase {
        let width = self.kv_heads * self.head_dim;
        let runs: Vec<Run> = (1u32..)
            .zip(self.runs)
            .map(|(seed, &(positions, rows))| {
                let keys = noise(positions * width, 2 * seed).iter().map(|value| value * 3.0).collect();
                Run { positions, rows, keys, values: noise(positions * width, 2 * seed + 101) }
            })
            .collect();
        let rows: usize = runs.iter().map(|run| run.rows).sum();
        AttentionCase {
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.window,
            softcap: self.softcap,
            precision,
            runs,
            q: noise(rows * self.heads * self.head_dim, 77).iter().map(|value| value * 3.0).collect(),
        }
    }
}

/// Attention of one head of one row.
fn head(case: &AttentionCase, run: &Run, position: usize, head: usize, q: &[f32]) -> Vec<f64> {
    let (dim, width) = (case.head_dim, case.kv_heads * case.head_dim);
    let at = head / (case.heads / case.kv_heads) * dim;
    let first = case.window.map_or(0, |window| (position + 1).saturating_sub(window));
    let score = |p: usize| {
        let key = &run.keys[p * width + at..][..dim];
        let dot: f64 = key.iter().zip(q).map(|(k, q)| f64::from(*k) * f64::from(*q)).sum();
        let score = dot * f64::from(case.scale());
        case.softcap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
    };
    let scores: Vec<f64> = (first..=position).map(score).collect();
    let top = scores.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = scores.iter().map(|score| (score - top).exp()).sum();
    let mut out = vec![0.0; dim];
    for (p, score) in (first..=position).zip(&scores) {
        let weight = (score - top).exp() / total;
        let value = &run.values[p * width + at..][..dim];
        out.iter_mut().zip(value).for_each(|(out, value)| *out += weight * f64::from(*value));
    }
    out
}

fn check(shape: &Shape) {
    let mut lab = Lab::new(test_gpu());
    for (precision, allowed) in [(Precision::Exact, 2e-5), (Precision::Fast, 1e-2)] {
        let case = shape.case(precision);
        let output = lab.attention(&case).unwrap();
        let mut heads = output.chunks(case.head_dim).zip(case.q.chunks(case.head_dim));
        for (sequence, run) in case.runs.iter().enumerate() {
            for position in run.positions - run.rows..run.positions {
                for h in 0..case.heads {
                    let (found, q) = heads.next().unwrap();
                    for (found, wanted) in found.iter().zip(head(&case, run, position, h, q)) {
                        let error = (f64::from(*found) - wanted).abs();
                        let what = format!("{precision:?}, sequence {sequence}, position {position}, head {h}");
                        assert!(error <= allowed, "{what}: {found}, not {wanted}");
                    }
                }
            }
        }
        assert!(heads.next().is_none());
    }
}

macro_rules! cases {
    ($($name:ident: $shape:expr,)*) => { $(#[test] fn $name() { check(&$shape); })* };
}

const PLAIN: Shape = Shape { heads: 8, kv_heads: 2, head_dim: 64, window: None, softcap: None, runs: &[(1, 1)] };

/// More rows than a class of few has, in as many sequences.
const MANY: [(usize, usize); 18] = [
    (600, 1),
    (1, 1),
    (33, 1),
    (32, 1),
    (64, 2),
    (700, 1),
    (5, 1),
    (90, 1),
    (31, 1),
    (40, 1),
    (513, 1),
    (2, 1),
    (3, 2),
    (100, 1),
    (65, 1),
    (20, 1),
    (17, 1),
    (8, 1),
];

cases! {
    the_first_token: PLAIN,
    one_row: Shape { runs: &[(100, 1)], ..PLAIN },
    one_row_of_a_long_context: Shape { runs: &[(1500, 1)], ..PLAIN },
    few_rows_of_unequal_contexts: Shape { runs: &[(700, 3), (33, 1), (1100, 2)], ..PLAIN },
    a_long_context_in_a_window: Shape { window: Some(600), runs: &[(1500, 2), (90, 1)], ..PLAIN },
    single_heads_and_a_soft_cap: Shape { heads: 3, kv_heads: 3, softcap: Some(5.0), runs: &[(640, 1)], ..PLAIN },
    seven_heads_per_kv_head: Shape { heads: 14, head_dim: 32, runs: &[(600, 2)], ..PLAIN },
    sixteen_heads_per_kv_head: Shape { heads: 16, kv_heads: 1, head_dim: 128, runs: &[(70, 2)], ..PLAIN },
    a_prompt: Shape { runs: &[(70, 70)], ..PLAIN },
    a_prompt_after_a_prompt: Shape { runs: &[(203, 50)], ..PLAIN },
    ragged_prompts: Shape { runs: &[(40, 40), (100, 1), (5, 5), (130, 33), (1, 1)], ..PLAIN },
    many_sequences_of_one_row: Shape { heads: 4, runs: &MANY, ..PLAIN },
    a_prompt_in_a_window: Shape { window: Some(20), runs: &[(150, 80)], ..PLAIN },
    a_prompt_with_a_soft_cap: Shape { heads: 6, softcap: Some(5.0), runs: &[(45, 45)], ..PLAIN },
    a_prompt_of_wide_heads: Shape { heads: 2, kv_heads: 1, head_dim: 256, runs: &[(50, 40)], ..PLAIN },
    a_prompt_of_heads_too_wide_for_tiles: Shape { heads: 2, kv_heads: 1, head_dim: 512, runs: &[(40, 20)], ..PLAIN },
    a_prompt_of_odd_heads: Shape { heads: 5, kv_heads: 1, head_dim: 20, runs: &[(37, 37)], ..PLAIN },
}
