use std::path::Path;
use std::time::Instant;

use cortiq_model::{Batch, GatedDeltaOp, HostState, LinearPart, Op, Slot, Span, StateDecl, StateId};
use safetensors::SafeTensors;

use super::{CHUNK, Chunk};
use crate::kernels::DeltaSteps;
use crate::ops::testing::{Bench, Tester, distance, wave};
use crate::{CpuExecutor, Isa};

const HIDDEN: usize = 64;
const KEY_HEADS: usize = 2;
const VALUE_HEADS: usize = 4;
const DIM: usize = 16;
const KERNEL: usize = 4;
const KEYS: usize = KEY_HEADS * DIM;
const VALUES: usize = VALUE_HEADS * DIM;
const CHANNELS: usize = 2 * KEYS + VALUES;

/// A file of `fixtures/gdn`.
struct Fixture(Vec<u8>);

impl Fixture {
    fn open(name: &str) -> Self {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/gdn").join(name);
        Self(std::fs::read(path).unwrap())
    }

    fn get(&self, name: &str) -> Vec<f32> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), safetensors::Dtype::F32);
        tensor.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}

/// Rows of a matrix with `HIDDEN` columns.
fn rows(matrix: &[f32], rows: std::ops::Range<usize>) -> Vec<f32> {
    matrix[rows.start * HIDDEN..rows.end * HIDDEN].to_vec()
}

/// `qkv`, `z`, `a`, `b` projections, ungrouped.
fn projections(file: &Fixture, grouped: bool) -> [Vec<f32>; 4] {
    if !grouped {
        return ["qkv", "z", "a", "b"].map(|name| file.get(&format!("w.in_proj_{name}.weight")));
    }
    let (qkvz, ba) = (file.get("w.in_proj_qkvz.weight"), file.get("w.in_proj_ba.weight"));
    let per = VALUE_HEADS / KEY_HEADS;
    let group = 2 * DIM + 2 * per * DIM;
    let part = |matrix: &[f32], group: usize, from: usize, len: usize| -> Vec<f32> {
        (0..KEY_HEADS).flat_map(|g| rows(matrix, g * group + from..g * group + from + len)).collect()
    };
    let (q, k) = (part(&qkvz, group, 0, DIM), part(&qkvz, group, DIM, DIM));
    let v = part(&qkvz, group, 2 * DIM, per * DIM);
    let z = part(&qkvz, group, 2 * DIM + per * DIM, per * DIM);
    [[q, k, v].concat(), z, part(&ba, 2 * per, per, per), part(&ba, 2 * per, 0, per)]
}

struct Slots {
    core: Slot,
    out: Slot,
}

/// The whole layer on input `x`, from the projections to the output projection.
fn layer(file: &Fixture, grouped: bool, x: &str, threads: usize) -> (Tester, Slots) {
    let x = file.get(x);
    let mut bench = Bench::new(x.len() / HIDDEN);
    let input = bench.input(x, HIDDEN);
    let (qkv, z) = (bench.slot(CHANNELS), bench.slot(VALUES));
    let (a, b) = (bench.slot(VALUE_HEADS), bench.slot(VALUE_HEADS));
    let parts = projections(file, grouped)
        .into_iter()
        .zip([(qkv, CHANNELS), (z, VALUES), (a, VALUE_HEADS), (b, VALUE_HEADS)])
        .map(|(values, (out, width))| LinearPart { weight: bench.matrix(values, width, HIDDEN), bias: None, out })
        .collect();
    bench.op(Op::Linear { input, parts });
    let core = bench.slot(VALUES);
    let floats = (KERNEL - 1) * CHANNELS + VALUE_HEADS * DIM * DIM;
    let op = GatedDeltaOp {
        qkv,
        z,
        a,
        b,
        conv: bench.vector(file.get("w.conv1d.weight")),
        a_log: bench.vector(file.get("w.A_log")),
        dt_bias: bench.vector(file.get("w.dt_bias")),
        norm: bench.vector(file.get("w.norm.weight")),
        eps: 1e-6,
        state: bench.state(StateDecl::Recurrent { floats }),
        key_heads: KEY_HEADS,
        value_heads: VALUE_HEADS,
        key_dim: DIM,
        value_dim: DIM,
        conv_kernel: KERNEL,
        out: core,
    };
    bench.op(Op::GatedDelta(op));
    let out = bench.slot(HIDDEN);
    let weight = bench.matrix(file.get("w.out_proj.weight"), HIDDEN, VALUES);
    bench.op(Op::Linear { input: core, parts: vec![LinearPart { weight, bias: None, out }] });
    (bench.executor(threads), Slots { core, out })
}

const FILES: [(&str, bool); 2] = [("qwen3_5_gdn.safetensors", false), ("qwen3_next_gdn.safetensors", true)];

/// Ring and matrices of the tester's sequence.
fn state(tester: &mut Tester) -> (Vec<f32>, Vec<f32>) {
    let host: &mut HostState = &mut tester.executor.run.state;
    let all = host.recurrent_mut(tester.sequence, StateId(0).0).unwrap();
    let (ring, matrices) = all.split_at(all.len() - VALUE_HEADS * DIM * DIM);
    (ring.to_vec(), matrices.to_vec())
}

#[test]
fn every_step_has_the_state_and_the_output_of_the_fixture() {
    for (name, grouped) in FILES {
        let file = Fixture::open(name);
        let (states, inputs) = (file.get("state_after_step"), file.get("conv_in"));
        let (normed, outputs) = (file.get("gated_norm_out"), file.get("out"));
        let (mut tester, slots) = layer(&file, grouped, "x", 2);
        for t in 0..9 {
            tester.step(1).unwrap();
            let (ring, matrices) = state(&mut tester);
            let size = matrices.len();
            assert!(distance(&matrices, &states[t * size..(t + 1) * size]) < 1e-5, "{name}, step {t}");
            let newest = &ring[(KERNEL - 2) * CHANNELS..];
            assert!(distance(newest, &inputs[t * CHANNELS..(t + 1) * CHANNELS]) < 1e-5, "{name}, step {t}");
            assert!(distance(tester.slot(slots.core), &normed[t * VALUES..(t + 1) * VALUES]) < 1e-5, "{name}, {t}");
            assert!(distance(tester.slot(slots.out), &outputs[t * HIDDEN..(t + 1) * HIDDEN]) < 1e-5, "{name}, {t}");
        }
    }
}

#[test]
fn a_prompt_and_steps_through_the_state_equal_the_fixture() {
    for (name, grouped) in FILES {
        let file = Fixture::open(name);
        let (mut tester, slots) = layer(&file, grouped, "x", 2);
        let ours = tester.steps(&[6], slots.out);
        let (_, matrices) = state(&mut tester);
        assert!(distance(&matrices, &file.get("cache_state_after_prefill")) < 1e-5, "{name}");
        let ours = [ours, tester.steps(&[1, 1, 1], slots.out)].concat();
        assert!(distance(&ours, &file.get("out_cached")) < 1e-5, "{name}");
        let (ring, matrices) = state(&mut tester);
        assert!(distance(&matrices, &file.get("cache_state_final")) < 1e-5, "{name}");
        // The fixture keeps `[channels, kernel]`, newest last.
        let theirs = file.get("cache_conv_state_final");
        let ring_of_theirs: Vec<f32> =
            (1..KERNEL).flat_map(|j| (0..CHANNELS).map(move |c| c * KERNEL + j)).map(|i| theirs[i]).collect();
        assert!(distance(&ring, &ring_of_theirs) < 1e-5, "{name}");
    }
}

#[test]
fn both_forms_equal_the_fixture_on_130_tokens() {
    for (name, grouped) in FILES {
        let file = Fixture::open(name);
        let expected = file.get("out_long");
        let mut results = Vec::new();
        // Chunks of the matrix form and a rest; the recurrence; both mixed.
        for steps in [&[130][..], &[5; 26], &[1; 130], &[64, 2, 50, 14]] {
            let (mut tester, slots) = layer(&file, grouped, "x_long", 2);
            let ours = tester.steps(steps, slots.out);
            assert!(distance(&ours, &expected) < 1e-5, "{name} {steps:?}: {}", distance(&ours, &expected));
            results.push((ours, state(&mut tester).1));
        }
        for (out, matrices) in &results[1..] {
            assert!(distance(out, &results[0].0) < 1e-5 && distance(matrices, &results[0].1) < 1e-5, "{name}");
        }
    }
}

#[test]
fn threads_and_neighbours_do_not_change_a_bit() {
    let file = Fixture::open(FILES[0].0);
    let run = |threads: usize, steps: &[usize]| {
        let (mut tester, slots) = layer(&file, false, "x_long", threads);
        tester.steps(steps, slots.out)
    };
    let whole = run(1, &[130]);
    assert_eq!(whole, run(3, &[130]));
    // Chunks are counted from the start of the span, so a cut at a border of chunks changes nothing.
    assert_eq!(whole, run(2, &[64, 66]));
    assert_eq!(run(1, &[1; 9]), run(2, &[4, 5]));
    let (mut tester, slots) = layer(&file, false, "x_long", 2);
    tester.step_together(&[3..8, 0..130, 20..21]);
    assert_eq!(tester.slot(slots.out)[5 * HIDDEN..135 * HIDDEN], whole);
}

/// Inputs of one head as the convolution leaves them.
struct Head {
    state: Vec<f32>,
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    log_decay: Vec<f32>,
    beta: Vec<f32>,
    key_dim: usize,
    value_dim: usize,
}

impl Head {
    fn new(tokens: usize, key_dim: usize, value_dim: usize, rate: f32) -> Self {
        let unit = |mut x: Vec<f32>| {
            for x in x.chunks_exact_mut(key_dim) {
                let norm = x.iter().map(|x| x * x).sum::<f32>().sqrt();
                x.iter_mut().for_each(|x| *x /= norm);
            }
            x
        };
        let positive = |salt: f32| wave(tokens, salt).into_iter().map(f32::abs);
        Self {
            state: wave(key_dim * value_dim, 1.0),
            q: unit(wave(tokens * key_dim, 2.0)),
            k: unit(wave(tokens * key_dim, 3.0)),
            v: wave(tokens * value_dim, 4.0),
            log_decay: positive(5.0).map(|x| -rate * x).collect(),
            beta: positive(6.0).collect(),
            key_dim,
            value_dim,
        }
    }

    fn recurrence(&mut self, isa: Isa) {
        let mut decay = self.log_decay.clone();
        isa.exp(&mut decay);
        let rows = self.k.chunks_exact(self.key_dim).zip(self.q.chunks_exact(self.key_dim));
        let kq: Vec<f32> = rows.map(|(k, q)| isa.dot(k, q)).collect();
        isa.delta_steps(DeltaSteps {
            state: &mut self.state,
            q: &self.q,
            k: &self.k,
            v: &mut self.v,
            decay: &decay,
            beta: &self.beta,
            kq: &kq,
            key_dim: self.key_dim,
            value_dim: self.value_dim,
        });
    }

    fn chunked(&mut self, isa: Isa, chunk: usize, scratch: &mut Vec<f32>) {
        scratch.resize(Chunk::floats(chunk, self.key_dim, self.value_dim), f32::NAN);
        let keys = self.q.chunks_mut(chunk * self.key_dim).zip(self.k.chunks(chunk * self.key_dim));
        let gates = self.log_decay.chunks(chunk).zip(self.beta.chunks(chunk));
        for (((q, k), v), (log_decay, beta)) in keys.zip(self.v.chunks_mut(chunk * self.value_dim)).zip(gates) {
            let (key_dim, value_dim) = (self.key_dim, self.value_dim);
            Chunk { state: &mut self.state, q, k, v, log_decay, beta, key_dim, value_dim }.run(isa, scratch);
        }
    }
}

#[test]
fn the_matrix_form_equals_the_recurrence_for_any_decay() {
    for isa in Isa::available() {
        // No decay at all, ordinary, and so strong that the sums of a chunk are far below what an f32 exponential has.
        for rate in [0.0, 0.1, 3.0, 500.0] {
            for (key_dim, value_dim) in [(16, 16), (20, 13), (128, 40)] {
                for chunk in [1, 7, 16, 17, CHUNK] {
                    let mut one = Head::new(130, key_dim, value_dim, rate);
                    let mut other = Head::new(130, key_dim, value_dim, rate);
                    one.recurrence(isa);
                    other.chunked(isa, chunk, &mut Vec::new());
                    let (out, state) = (distance(&one.v, &other.v), distance(&one.state, &other.state));
                    assert!(out < 1e-4 && state < 1e-4, "{isa:?} rate {rate}, {key_dim}x{value_dim}: {out} {state}");
                }
            }
        }
    }
}

/// Best time of several runs, in microseconds.
fn time(mut work: impl FnMut()) -> f64 {
    let best = (0..20).map(|_| {
        let start = Instant::now();
        work();
        start.elapsed().as_secs_f64()
    });
    best.fold(f64::MAX, f64::min) * 1e6
}

/// Measures, so it is run by hand, with `--run-ignored only --no-capture` and optimisation.
#[test]
#[ignore = "compares times, which need an optimised build and an idle machine"]
fn a_token_of_a_chunk_costs_less_than_a_step() {
    let isa = Isa::detect();
    let (key_dim, value_dim) = (128, 128);
    let mut per_token = Vec::new();
    for tokens in [1, 4, 6, 8, 16, 32, 64, 256] {
        let mut head = Head::new(tokens, key_dim, value_dim, 0.1);
        let steps = time(|| head.recurrence(isa)) / tokens as f64;
        let mut scratch = Vec::new();
        let mut head = Head::new(tokens, key_dim, value_dim, 0.1);
        let chunked = time(|| head.chunked(isa, CHUNK.min(tokens), &mut scratch)) / tokens as f64;
        println!("{tokens} tokens, one head {key_dim}x{value_dim}: {steps:.2} µs by steps, {chunked:.2} µs in chunks");
        per_token.push((steps, chunked));
    }
    let (step, chunked) = (per_token[0].0, per_token[7].1);
    assert!(chunked < step, "{chunked} µs against {step} µs");
}

/// Measures, as above: 16 key heads and 32 value heads of 128, on one thread.
#[test]
#[ignore = "compares times, which need an optimised build and an idle machine"]
fn a_token_of_a_longer_span_costs_less() {
    let mut per_token = Vec::new();
    for tokens in [1, 4, 8, 16, 64, 256] {
        let (key_heads, value_heads, dim) = (16, 32, 128);
        let (channels, values) = ((2 * key_heads + value_heads) * dim, value_heads * dim);
        let mut bench = Bench::new(tokens);
        let op = GatedDeltaOp {
            qkv: bench.input(wave(tokens * channels, 1.0), channels),
            z: bench.input(wave(tokens * values, 2.0), values),
            a: bench.input(wave(tokens * value_heads, 3.0), value_heads),
            b: bench.input(wave(tokens * value_heads, 4.0), value_heads),
            conv: bench.vector(wave(channels * KERNEL, 5.0)),
            a_log: bench.vector(wave(value_heads, 6.0)),
            dt_bias: bench.vector(wave(value_heads, 7.0)),
            norm: bench.vector(wave(dim, 8.0)),
            eps: 1e-6,
            state: bench.state(StateDecl::Recurrent { floats: 3 * channels + value_heads * dim * dim }),
            key_heads,
            value_heads,
            key_dim: dim,
            value_dim: dim,
            conv_kernel: KERNEL,
            out: bench.slot(values),
        };
        bench.op(Op::GatedDelta(op));
        let mut tester = bench.executor(1);
        tester.step(tokens).unwrap();
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let span = Span { sequence: tester.sequence, start: 0, len: tokens, known_len: 0 };
        let batch = Batch { tokens: &ids, spans: &[span], logit_rows: &[] };
        let CpuExecutor { model, run, .. } = &mut tester.executor;
        let cost = time(|| super::gated_delta(model, run, &batch, &op).unwrap()) / tokens as f64;
        println!("{tokens} tokens, 32 heads of 128: {cost:.1} µs per token");
        per_token.push(cost);
    }
    assert!(per_token[5] < per_token[0], "{per_token:?}");
}
