use cortiq_model::{Activation, Expert, ModelError, MoeOp, Op, RouterScoring, SharedExpert, Slot};

use crate::ops::testing::{Bench, Tester, distance, wave};

const TOKENS: usize = 20;
const HIDDEN: usize = 24;
const EXPERTS: usize = 7;
const WIDTH: usize = 10;
const SHARED_WIDTH: usize = 13;
const TOP_K: usize = 3;

#[derive(Clone, Copy, PartialEq)]
enum Shared {
    No,
    Plain,
    Gated,
}

/// gate, up `[width, HIDDEN]` and down `[HIDDEN, width]` of an expert.
fn expert_values(index: usize, width: usize) -> [Vec<f32>; 3] {
    let salt = 10.0 + 3.0 * index as f32;
    [wave(width * HIDDEN, salt), wave(width * HIDDEN, salt + 1.0), wave(HIDDEN * width, salt + 2.0)]
}

fn expert(bench: &mut Bench, index: usize, width: usize) -> Expert {
    let [gate, up, down] = expert_values(index, width);
    Expert {
        gate: bench.matrix(gate, width, HIDDEN),
        up: bench.matrix(up, width, HIDDEN),
        down: bench.matrix(down, HIDDEN, width),
    }
}

fn input() -> Vec<f32> {
    wave(TOKENS * HIDDEN, 1.0)
}

fn bench(threads: usize, shared: Shared, activation: Activation, input: Vec<f32>) -> (Tester, Slot) {
    let mut bench = Bench::new(TOKENS);
    let input = bench.input(input, HIDDEN);
    let out = bench.slot(HIDDEN);
    let router = bench.matrix(wave(EXPERTS * HIDDEN, 2.0), EXPERTS, HIDDEN);
    let experts = (0..EXPERTS).map(|index| expert(&mut bench, index, WIDTH)).collect();
    let shared = (shared != Shared::No).then(|| SharedExpert {
        expert: expert(&mut bench, EXPERTS, SHARED_WIDTH),
        intermediate_size: SHARED_WIDTH,
        gate: (shared == Shared::Gated).then(|| bench.matrix(wave(HIDDEN, 3.0), 1, HIDDEN)),
    });
    bench.op(Op::Moe(MoeOp {
        input,
        out,
        router,
        scoring: RouterScoring::Softmax,
        selection_bias: None,
        groups: None,
        top_k: TOP_K,
        normalise: Some(0.0),
        scale: 1.5,
        experts,
        intermediate_size: WIDTH,
        shared,
        activation,
    }));
    (bench.executor(threads), out)
}

fn product(weight: &[f32], x: &[f64]) -> Vec<f64> {
    weight.chunks_exact(x.len()).map(|w| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum()).collect()
}

fn ffn(index: usize, width: usize, activation: Activation, x: &[f64]) -> Vec<f64> {
    let [gate, up, down] = expert_values(index, width);
    let gate = product(&gate, x).into_iter().map(|g| f64::from(activation.apply(g as f32)));
    let hidden: Vec<f64> = gate.zip(product(&up, x)).map(|(g, u)| g * u).collect();
    product(&down, &hidden)
}

/// Position by position, as the definition says.
fn plain(shared: Shared, activation: Activation) -> Vec<f32> {
    let mut all = Vec::new();
    for x in input().chunks_exact(HIDDEN) {
        let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let logits = product(&wave(EXPERTS * HIDDEN, 2.0), &x);
        let mut order: Vec<usize> = (0..EXPERTS).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
        let chosen = &order[..TOP_K];
        let total: f64 = chosen.iter().map(|e| logits[*e].exp()).sum();
        let mut y = vec![0.0; HIDDEN];
        let mut add = |factor: f64, values: Vec<f64>| y.iter_mut().zip(values).for_each(|(y, v)| *y += factor * v);
        for &e in chosen {
            add(1.5 * logits[e].exp() / total, ffn(e, WIDTH, activation, &x));
        }
        match shared {
            Shared::No => {}
            Shared::Plain => add(1.0, ffn(EXPERTS, SHARED_WIDTH, activation, &x)),
            Shared::Gated => {
                let gate = product(&wave(HIDDEN, 3.0), &x)[0];
                add(1.0 / (1.0 + (-gate).exp()), ffn(EXPERTS, SHARED_WIDTH, activation, &x));
            }
        }
        all.extend(y.into_iter().map(|y| y as f32));
    }
    all
}

#[test]
fn equals_the_definition() {
    for shared in [Shared::No, Shared::Plain, Shared::Gated] {
        for activation in [Activation::Silu, Activation::GeluTanh] {
            let expected = plain(shared, activation);
            for steps in [&[TOKENS][..], &[1; TOKENS]] {
                let (mut tester, out) = bench(2, shared, activation, input());
                let ours = tester.steps(steps, out);
                assert!(distance(&ours, &expected) < 2e-5, "{}", distance(&ours, &expected));
            }
        }
    }
}

#[test]
fn threads_chunks_and_neighbours_do_not_change_a_bit() {
    let run = |threads: usize, steps: &[usize]| {
        let (mut tester, out) = bench(threads, Shared::Gated, Activation::Silu, input());
        tester.steps(steps, out)
    };
    let whole = run(1, &[TOKENS]);
    assert_eq!(whole, run(4, &[TOKENS]));
    assert_eq!(whole, run(2, &[1; TOKENS]));
    assert_eq!(whole, run(3, &[4, 11, 5]));
}

#[test]
fn a_router_that_gives_no_number_fails_and_the_sequence_keeps_its_length() {
    let mut values = input();
    values[5 * HIDDEN] = f32::NAN;
    let (mut tester, _) = bench(2, Shared::No, Activation::Silu, values);
    tester.step(4).unwrap();
    let error = tester.step(4).unwrap_err();
    assert!(matches!(error, ModelError::Executor(_)) && error.to_string().contains("router"), "{error}");
    let sequence = tester.sequence;
    assert_eq!(cortiq_model::Executor::states(&mut tester.executor).len(sequence).unwrap(), 4);
}
