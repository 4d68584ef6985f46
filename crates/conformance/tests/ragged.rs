//! Sequences of different lengths and phases in one step, sequences after and between each other, and the way back to
//! a snapshot, for every fixture. The reference executor gives the same bits as for a sequence alone; of the cpu
//! executor see docs/design.md §7.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cortiq_conformance::{MODELS, Model, Piece, alone, convert_fixture, golden, max_abs_diff, open_model, step};
use cortiq_engine::sampler::argmax;
use cortiq_model::{Executor, SequenceId};
use cortiq_quant::Encoding;

/// A model and tokens for it.
struct Subject {
    name: &'static str,
    model: Model,
    tokens: Vec<u32>,
}

fn fixture(name: &'static str) -> Subject {
    let folder = tempfile::tempdir().unwrap();
    let model = open_model(&convert_fixture(name, Encoding::F32, folder.path()));
    Subject { name, model, tokens: golden(name).sequences.swap_remove(3).input_ids }
}

fn subjects() -> impl Iterator<Item = Subject> {
    MODELS.into_iter().map(fixture)
}

fn bits(logits: &[f32]) -> Vec<u32> {
    logits.iter().map(|l| l.to_bits()).collect()
}

/// Positions that a sequence holds before the ragged step, those of the step, and those of the step after it.
const PHASES: [(&str, [usize; 3]); 5] = [
    ("a chunk in the middle of a prompt", [40, 35, 15]),
    ("the first chunk", [0, 33, 27]),
    ("decoding", [65, 1, 1]),
    ("decoding after one token", [1, 1, 1]),
    ("the last chunk, then decoding", [50, 14, 1]),
];

/// Largest difference between the rows of ragged steps and those of each sequence alone in one step.
fn ragged(executor: &mut dyn Executor, what: &str, tokens: &[u32]) -> f32 {
    let texts: Vec<&[u32]> =
        PHASES.iter().enumerate().map(|(i, (_, parts))| &tokens[i * 37..][..parts.iter().sum()]).collect();
    let want: Vec<Vec<f32>> = texts.iter().map(|text| alone(executor, text, text.len())).collect();
    let open: Vec<SequenceId> = texts.iter().map(|_| executor.states().open().unwrap()).collect();
    let mut got = vec![Vec::new(); texts.len()];
    for part in 0..3 {
        // The order of the sequences is another in every step.
        let order: Vec<usize> = (0..PHASES.len()).map(|i| (i * (part + 1) + part) % PHASES.len()).collect();
        let piece = |&i: &usize| {
            let lengths = PHASES[i].1;
            let start: usize = lengths[..part].iter().sum();
            let tokens = &texts[i][start..start + lengths[part]];
            Piece { sequence: open[i], start, tokens, known_len: texts[i].len() }
        };
        let (order, pieces): (Vec<usize>, Vec<Piece<'_>>) =
            order.iter().map(|i| (*i, piece(i))).filter(|(_, piece)| !piece.tokens.is_empty()).unzip();
        for (i, logits) in order.into_iter().zip(step(executor, &pieces)) {
            got[i].extend(logits);
        }
    }
    open.into_iter().for_each(|sequence| executor.states().close(sequence).unwrap());
    let mut worst = 0.0;
    for (((phase, _), got), want) in PHASES.iter().zip(&got).zip(&want) {
        let difference = max_abs_diff(got, want);
        println!("{what}, {phase}: {difference:.2e}");
        worst = difference.max(worst);
    }
    worst
}

#[test]
fn ragged_batches_give_every_sequence_its_own_logits_on_the_reference_executor() {
    for Subject { name, model, tokens } in subjects() {
        assert_eq!(ragged(&mut model.reference(), name, &tokens), 0.0, "{name}");
    }
}

#[test]
fn ragged_batches_give_every_sequence_its_own_logits_on_the_cpu_executor() {
    for Subject { name, model, tokens } in subjects() {
        let difference = ragged(&mut model.cpu(2), name, &tokens);
        assert!(difference <= 1e-4, "{name}: {difference}");
    }
}

/// Feeds `tokens` to two sequences in turns of uneven length, and returns the logits of the first.
fn in_turns(executor: &mut dyn Executor, tokens: &[u32], other: Option<&[u32]>) -> Vec<f32> {
    let open = [executor.states().open().unwrap(), executor.states().open().unwrap()];
    let (mut logits, mut start) = (Vec::new(), 0);
    for len in [37, 1, 1, 20, 1] {
        for (i, text) in [Some(tokens), other].into_iter().enumerate() {
            let Some(text) = text else { continue };
            let tokens = &text[start..start + len];
            let rows = step(executor, &[Piece { sequence: open[i], start, tokens, known_len: text.len() }]).remove(0);
            if i == 0 {
                logits.extend(rows);
            }
        }
        start += len;
    }
    open.into_iter().for_each(|sequence| executor.states().close(sequence).unwrap());
    logits
}

/// A, X, A: what comes before or between does not change a bit of A.
#[test]
fn an_unrelated_sequence_before_or_between_does_not_change_a_bit() {
    for Subject { name, model, tokens } in subjects() {
        let (a, x) = (&tokens[..60], &tokens[150..250]);
        let executors: [Box<dyn Executor>; 2] = [Box::new(model.reference()), Box::new(model.cpu(2))];
        for mut executor in executors {
            let first = bits(&in_turns(&mut *executor, a, None));
            assert_ne!(bits(&alone(&mut *executor, x, 70))[..first.len()], first[..], "{name}: X is A");
            let again = bits(&in_turns(&mut *executor, a, None));
            assert!(again == first, "{name} on {}: A, X, A", executor.name());
            let between = bits(&in_turns(&mut *executor, a, Some(x)));
            assert!(between == first, "{name} on {}: X between", executor.name());
        }
    }
}

/// Greedy tokens and the bits of the logits that they were chosen from, after `last`.
fn generate(executor: &mut dyn Executor, sequence: SequenceId, last: u32, count: usize) -> (Vec<u32>, Vec<u32>) {
    let (mut tokens, mut seen) = (vec![last], Vec::new());
    for _ in 0..count {
        let start = executor.states().len(sequence).unwrap();
        let piece = Piece { sequence, start, tokens: &tokens[tokens.len() - 1..], known_len: 0 };
        let logits = step(executor, &[piece]).remove(0);
        seen.extend(bits(&logits));
        tokens.push(argmax(&logits).unwrap());
    }
    (tokens.split_off(1), seen)
}

/// Generate, snapshot, generate on, restore, generate again; with another sequence in between, and in a fork.
#[test]
fn a_restored_snapshot_generates_the_same_tokens() {
    for Subject { name, model, tokens } in subjects() {
        let executors: [Box<dyn Executor>; 2] = [Box::new(model.reference()), Box::new(model.cpu(2))];
        for mut executor in executors {
            let executor = &mut *executor;
            let sequence = executor.states().open().unwrap();
            step(executor, &[Piece { sequence, start: 0, tokens: &tokens[..45], known_len: 0 }]);
            let (before, _) = generate(executor, sequence, tokens[45], 6);
            let last = before[before.len() - 1];
            let snapshot = executor.states().snapshot(sequence).unwrap();
            // Long enough to leave the windows of the fixtures and to fill several blocks.
            let first = generate(executor, sequence, last, 40);
            alone(executor, &tokens[100..170], 64);
            let fork = executor.states().open().unwrap();
            for sequence in [sequence, fork, sequence] {
                executor.states().restore(sequence, snapshot).unwrap();
                let again = generate(executor, sequence, last, 40);
                assert_eq!(again.0, first.0, "{name} on {}", executor.name());
                assert!(again == first, "{name} on {}: logits", executor.name());
            }
            executor.states().release(snapshot).unwrap();
            // The test is able to fail: from the start, the same token leads elsewhere.
            executor.states().truncate(fork, 0).unwrap();
            assert!(generate(executor, fork, last, 40).1 != first.1, "{name}: the past does not matter");
        }
    }
}
