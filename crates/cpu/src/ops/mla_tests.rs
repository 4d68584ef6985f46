use cortiq_model::{KvLayer, MlaAttentionOp, MlaStoreOp, Op, Pairing, RopeTable, Slot, StateDecl, VectorId};

use crate::ops::testing::{Bench, Tester, distance, wave};

const TOKENS: usize = 50;
const HEADS: usize = 6;
const NOPE: usize = 10;
const ROPE: usize = 4;
const VALUE: usize = 7;
const RANK: usize = 12;
const SCALE: f32 = 0.3;

fn table(pairing: Pairing) -> RopeTable {
    RopeTable { inv_freq: vec![1.0, 0.1], long: None, attention_factor: 1.0, pairing }
}

fn bench(threads: usize, pairing: Pairing, mask: Option<[f32; HEADS]>) -> (Tester, Slot) {
    let mut bench = Bench::new(TOKENS);
    let q = bench.input(wave(TOKENS * HEADS * (NOPE + ROPE), 1.0), HEADS * (NOPE + ROPE));
    let kv = bench.input(wave(TOKENS * (RANK + ROPE), 2.0), RANK + ROPE);
    let kv_norm = bench.vector(wave(RANK, 3.0));
    let rope = bench.rope(table(pairing));
    let layer = KvLayer { kv_heads: 1, key_dim: RANK + ROPE, value_dim: 0, window: None };
    let state = bench.state(StateDecl::Kv(layer));
    let kv_b = bench.matrix(wave(HEADS * (NOPE + VALUE) * RANK, 4.0), HEADS * (NOPE + VALUE), RANK);
    let out = bench.slot(HEADS * VALUE);
    assert_eq!(kv_norm, VectorId(0));
    bench.op(Op::MlaStore(MlaStoreOp {
        q,
        kv,
        kv_norm,
        eps: 1e-6,
        rope,
        state,
        heads: HEADS,
        nope_dim: NOPE,
        rope_dim: ROPE,
        kv_rank: RANK,
    }));
    let head_mask = mask.map(|mask| bench.vector(mask.to_vec()));
    bench.op(Op::MlaAttention(MlaAttentionOp {
        q,
        kv_b,
        out,
        state,
        heads: HEADS,
        nope_dim: NOPE,
        rope_dim: ROPE,
        value_dim: VALUE,
        kv_rank: RANK,
        scale: SCALE,
        head_mask,
    }));
    (bench.executor(threads), out)
}

/// Rotates in place the way the published code does, each pair kept where it is.
fn rotated(x: &[f32], position: usize, pairing: Pairing) -> Vec<f64> {
    let mut y: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
    for i in 0..2 {
        let (a, b) = if pairing == Pairing::Halves { (i, i + 2) } else { (2 * i, 2 * i + 1) };
        let (sin, cos) = (position as f64 * f64::from(table(pairing).inv_freq[i])).sin_cos();
        (y[a], y[b]) = (y[a] * cos - y[b] * sin, y[b] * cos + y[a] * sin);
    }
    y
}

/// Every key and value expanded, plain softmax attention per head.
fn expanded(pairing: Pairing) -> Vec<f32> {
    let (q, kv) = (wave(TOKENS * HEADS * (NOPE + ROPE), 1.0), wave(TOKENS * (RANK + ROPE), 2.0));
    let (norm, kv_b) = (wave(RANK, 3.0), wave(HEADS * (NOPE + VALUE) * RANK, 4.0));
    let compressed: Vec<Vec<f64>> = kv
        .chunks_exact(RANK + ROPE)
        .map(|row| {
            let mean = row[..RANK].iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / RANK as f64;
            row[..RANK].iter().zip(&norm).map(|(x, w)| f64::from(*x) / (mean + 1e-6).sqrt() * f64::from(*w)).collect()
        })
        .collect();
    let key_rope: Vec<Vec<f64>> = kv
        .chunks_exact(RANK + ROPE)
        .enumerate()
        .map(|(position, row)| rotated(&row[RANK..], position, pairing))
        .collect();
    let project = |row: usize, c: &[f64]| -> f64 {
        kv_b[row * RANK..(row + 1) * RANK].iter().zip(c).map(|(w, c)| f64::from(*w) * c).sum()
    };
    let mut out = Vec::new();
    for t in 0..TOKENS {
        for h in 0..HEADS {
            let q = &q[(t * HEADS + h) * (NOPE + ROPE)..][..NOPE + ROPE];
            let q_rope = rotated(&q[NOPE..], t, pairing);
            let first = h * (NOPE + VALUE);
            let weights: Vec<f64> = (0..=t)
                .map(|j| {
                    let nope: f64 = (0..NOPE).map(|i| f64::from(q[i]) * project(first + i, &compressed[j])).sum();
                    let rope: f64 = q_rope.iter().zip(&key_rope[j]).map(|(a, b)| a * b).sum();
                    (f64::from(SCALE) * (nope + rope)).exp()
                })
                .collect();
            let total: f64 = weights.iter().sum();
            for v in 0..VALUE {
                let sum: f64 = weights.iter().zip(&compressed).map(|(w, c)| w * project(first + NOPE + v, c)).sum();
                out.push((sum / total) as f32);
            }
        }
    }
    out
}

#[test]
fn equals_attention_over_expanded_keys_and_values() {
    for pairing in [Pairing::Halves, Pairing::Interleaved] {
        let expected = expanded(pairing);
        for steps in [&[50][..], &[1; 50], &[33, 1, 16]] {
            let (mut tester, out) = bench(2, pairing, None);
            let ours = tester.steps(steps, out);
            assert!(distance(&ours, &expected) < 1e-5, "{pairing:?} {steps:?}: {}", distance(&ours, &expected));
        }
    }
}

#[test]
fn heads_that_are_off_give_nothing() {
    let mask = [1.0, 0.0, 0.0, 1.0, 1.0, 0.0];
    let mut expected = expanded(Pairing::Halves);
    for (i, head) in expected.chunks_exact_mut(VALUE).enumerate() {
        head.iter_mut().for_each(|x| *x *= mask[i % HEADS]);
    }
    let (mut tester, out) = bench(2, Pairing::Halves, Some(mask));
    let ours = tester.steps(&[33, 1, 16], out);
    assert!(distance(&ours, &expected) < 1e-5, "{}", distance(&ours, &expected));
}

#[test]
fn threads_chunks_and_neighbours_do_not_change_a_bit() {
    let run = |threads: usize, steps: &[usize]| {
        let (mut tester, out) = bench(threads, Pairing::Interleaved, None);
        tester.steps(steps, out)
    };
    let whole = run(1, &[50]);
    assert_eq!(whole, run(3, &[50]));
    assert_eq!(whole, run(2, &[7, 1, 30, 12]));
    let (mut tester, out) = bench(2, Pairing::Interleaved, None);
    tester.step_together(&[10..13, 0..50, 4..5]);
    assert_eq!(tester.slot(out)[3 * HEADS * VALUE..53 * HEADS * VALUE], whole);
}
