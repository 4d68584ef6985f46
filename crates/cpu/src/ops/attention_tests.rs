use cortiq_model::{
    AttentionOp, KvLayer, NormSpan, Op, Pairing, QkNorm, QkNormRopeStoreOp, RopeTable, Slot, StateDecl,
};

use crate::ops::testing::{Bench, Tester, distance, wave};

const TOKENS: usize = 100;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const DIM: usize = 6;

/// What varies between layers.
#[derive(Clone, Copy, Default)]
struct Kind {
    window: Option<usize>,
    softcap: Option<f32>,
    gate: bool,
    rope: Option<Pairing>,
    norm: Option<NormSpan>,
    value_norm: bool,
    mask: Option<[f32; HEADS]>,
}

fn table(pairing: Pairing) -> RopeTable {
    RopeTable { inv_freq: vec![1.0, 0.05], long: None, attention_factor: 1.25, pairing }
}

fn norm_lens(span: NormSpan) -> (usize, usize) {
    if span == NormSpan::AllHeads { (HEADS * DIM, KV_HEADS * DIM) } else { (DIM, DIM) }
}

fn bench(kind: Kind, threads: usize) -> (Tester, Slot) {
    let mut bench = Bench::new(TOKENS);
    let q = bench.input(wave(TOKENS * HEADS * DIM, 1.0), HEADS * DIM);
    let k = bench.input(wave(TOKENS * KV_HEADS * DIM, 2.0), KV_HEADS * DIM);
    let v = bench.input(wave(TOKENS * KV_HEADS * DIM, 3.0), KV_HEADS * DIM);
    let gate = kind.gate.then(|| bench.input(wave(TOKENS * HEADS * DIM, 4.0), HEADS * DIM));
    let out = bench.slot(HEADS * DIM);
    let layer = KvLayer { kv_heads: KV_HEADS, key_dim: DIM, value_dim: DIM, window: kind.window };
    let state = bench.state(StateDecl::Kv(layer));
    let rope = kind.rope.map(|pairing| bench.rope(table(pairing)));
    let qk_norm = kind.norm.map(|span| {
        let (q_len, k_len) = norm_lens(span);
        QkNorm { q: bench.vector(wave(q_len, 5.0)), k: bench.vector(wave(k_len, 6.0)), eps: 1e-6, span }
    });
    bench.op(Op::QkNormRopeStore(QkNormRopeStoreOp {
        q,
        k,
        v,
        state,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        qk_norm,
        value_norm: kind.value_norm.then_some(1e-6),
        rope,
    }));
    let head_mask = kind.mask.map(|mask| bench.vector(mask.to_vec()));
    bench.op(Op::Attention(AttentionOp {
        q,
        gate,
        out,
        state,
        heads: HEADS,
        kv_heads: KV_HEADS,
        head_dim: DIM,
        window: kind.window,
        scale: 2.0,
        softcap: kind.softcap,
        head_mask,
    }));
    (bench.executor(threads), out)
}

fn normed(x: &[f64], weight: Option<&[f32]>) -> Vec<f64> {
    let root = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-6).sqrt();
    x.iter().enumerate().map(|(i, x)| x / root * weight.map_or(1.0, |w| f64::from(w[i]))).collect()
}

/// Rows of heads after norm and rotation; pairs stay where they are.
fn prepared(raw: &[f32], width: usize, norm: Option<(NormSpan, Vec<f32>)>, rope: Option<Pairing>) -> Vec<Vec<f64>> {
    let mut heads = Vec::new();
    for (position, row) in raw.chunks_exact(width).enumerate() {
        let mut row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
        if let Some((span, weight)) = &norm {
            let len = if *span == NormSpan::AllHeads { width } else { DIM };
            row = row.chunks_exact(len).flat_map(|x| normed(x, Some(weight))).collect();
        }
        for head in row.chunks_exact_mut(DIM) {
            for (i, f) in [1.0, f64::from(0.05f32)].into_iter().enumerate().filter(|_| rope.is_some()) {
                let (a, b) = if rope == Some(Pairing::Halves) { (i, i + 2) } else { (2 * i, 2 * i + 1) };
                let (sin, cos) = (position as f64 * f).sin_cos();
                (head[a], head[b]) = (1.25 * (head[a] * cos - head[b] * sin), 1.25 * (head[b] * cos + head[a] * sin));
            }
            heads.push(head.to_vec());
        }
    }
    heads
}

fn plain(kind: Kind) -> Vec<f32> {
    let weights = |salt, len: fn((usize, usize)) -> usize| kind.norm.map(|s| (s, wave(len(norm_lens(s)), salt)));
    let q = prepared(&wave(TOKENS * HEADS * DIM, 1.0), HEADS * DIM, weights(5.0, |l| l.0), kind.rope);
    let k = prepared(&wave(TOKENS * KV_HEADS * DIM, 2.0), KV_HEADS * DIM, weights(6.0, |l| l.1), kind.rope);
    let mut v = prepared(&wave(TOKENS * KV_HEADS * DIM, 3.0), KV_HEADS * DIM, None, None);
    if kind.value_norm {
        v.iter_mut().for_each(|v| *v = normed(v, None));
    }
    let gate = wave(TOKENS * HEADS * DIM, 4.0);
    let mut out = Vec::new();
    for t in 0..TOKENS {
        for h in 0..HEADS {
            let from = kind.window.map_or(0, |w| (t + 1).saturating_sub(w));
            let at = |j: usize| j * KV_HEADS + h / (HEADS / KV_HEADS);
            let scores: Vec<f64> = (from..=t)
                .map(|j| {
                    let score = 2.0 * q[t * HEADS + h].iter().zip(&k[at(j)]).map(|(a, b)| a * b).sum::<f64>();
                    kind.softcap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh()).exp()
                })
                .collect();
            let total: f64 = scores.iter().sum();
            for d in 0..DIM {
                let sum: f64 = scores.iter().zip(from..=t).map(|(s, j)| s * v[at(j)][d]).sum();
                let gate = f64::from(gate[(t * HEADS + h) * DIM + d]);
                let gate = if kind.gate { 1.0 / (1.0 + (-gate).exp()) } else { 1.0 };
                let on = kind.mask.map_or(1.0, |mask| f64::from(mask[h]));
                out.push((sum / total * gate * on) as f32);
            }
        }
    }
    out
}

#[test]
fn every_kind_of_layer_equals_plain_attention() {
    let halves = Kind { rope: Some(Pairing::Halves), ..Kind::default() };
    let kinds = [
        ("plain", halves),
        ("without positions", Kind::default()),
        ("interleaved", Kind { rope: Some(Pairing::Interleaved), ..halves }),
        ("window", Kind { window: Some(5), ..halves }),
        ("window over a block", Kind { window: Some(40), ..halves }),
        ("soft cap", Kind { softcap: Some(1.5), ..halves }),
        ("gate", Kind { gate: true, ..halves }),
        ("head norms", Kind { norm: Some(NormSpan::Head), ..halves }),
        ("norms over all heads", Kind { norm: Some(NormSpan::AllHeads), ..halves }),
        ("value norm", Kind { value_norm: true, ..halves }),
        ("heads off", Kind { mask: Some([0.0, 1.0, 1.0, 0.0]), gate: true, ..halves }),
    ];
    for (name, kind) in kinds {
        let expected = plain(kind);
        for steps in [&[TOKENS][..], &[1; TOKENS], &[37, 1, 62]] {
            let (mut tester, out) = bench(kind, 2);
            let ours = tester.steps(steps, out);
            assert!(distance(&ours, &expected) < 1e-5, "{name}: {}", distance(&ours, &expected));
        }
    }
}
