//! The best tokens as a gpu chooses them from logits, against a sort on the host: ties, zeros of both signs, what is no
//! logit, vocabularies of all sizes, several rows. And steps that bring them back instead of all logits.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::cmp::Ordering;
use std::ops::ControlFlow;
use std::sync::Arc;

use cortiq_cmf::CmfFile;
use cortiq_conformance::{convert_fixture, golden, open_model, test_gpu};
use cortiq_engine::{Engine, EngineOptions, ExecutorKind, GenerateOptions, SamplingParams, Speculation};
use cortiq_gpu::lab::{Lab, TopCase};
use cortiq_gpu::{AdapterChoice, Caps, GpuExecutor, Precision, kernel_variants};
use cortiq_hybrid::{GpuPlan, Probe};
use cortiq_model::{Batch, DraftInput, DraftSource, Executor, Span, StateLimits, TopRows};
use cortiq_quant::Encoding;

const INF: f32 = f32::INFINITY;

/// Numbers of tokens: greedy, usual ones, the most that kernels choose.
const COUNTS: [usize; 5] = [1, 2, 20, 40, 64];

/// Integers in 0 .. `levels`.
struct Noise(u32);

impl Noise {
    fn below(&mut self, levels: u32) -> u32 {
        self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.0 >> 8) % levels
    }

    /// Logits of so many distinct values, of both signs.
    fn row(&mut self, vocab: usize, levels: u32) -> Vec<f32> {
        (0..vocab).map(|_| (self.below(levels) as f32 - levels as f32 / 2.0) * (12.0 / levels as f32)).collect()
    }
}

/// Whether a value is no logit.
fn bad(logit: f32) -> bool {
    logit.is_nan() || logit == INF
}

/// Larger logits first, what is no logit before all; equal ones as they stand.
fn order(a: f32, b: f32) -> Ordering {
    match (bad(a), bad(b)) {
        (false, false) => b.partial_cmp(&a).unwrap(),
        (a, b) => b.cmp(&a),
    }
}

/// The best of a row by a stable sort.
fn sorted(row: &[f32], count: usize) -> Vec<(u32, u32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(row.iter().copied()).collect();
    all.sort_by(|a, b| order(a.1, b.1));
    all.truncate(count);
    all.into_iter().map(|(id, logit)| (id, logit.to_bits())).collect()
}

fn pairs(rows: &TopRows, row: usize) -> Vec<(u32, u32)> {
    rows.row(row).iter().map(|token| (token.id, token.logit.to_bits())).collect()
}

/// Compares all counts on rows of one vocabulary.
fn check(lab: &mut Lab, what: &str, rows: &[Vec<f32>]) {
    let (logits, vocab_size) = (rows.concat(), rows[0].len());
    for slice in lab.top_slices() {
        for count in COUNTS {
            let what = format!("{what}, {vocab_size} tokens in slices of {slice}, the best {count}");
            let top = lab.top(&TopCase { logits: &logits, vocab_size, count, slice }).unwrap();
            assert_eq!((top.rows(), top.per_row()), (rows.len(), count.min(vocab_size)), "{what}");
            for (i, row) in rows.iter().enumerate() {
                assert_eq!(pairs(&top, i), sorted(row, count), "{what}, row {i}");
            }
        }
    }
}

#[test]
fn rows_of_every_size_with_many_ties_and_with_few() {
    let (mut lab, mut noise) = (Lab::new(test_gpu()), Noise(5));
    for vocab in [1, 2, 31, 32, 33, 63, 65, 512, 2047, 2048, 2049, 8192, 10_001] {
        let rows: Vec<_> = [1 << 24, 1000, 7].into_iter().map(|levels| noise.row(vocab, levels)).collect();
        check(&mut lab, "noise", &rows);
    }
}

#[test]
fn a_whole_vocabulary() {
    let (mut lab, mut noise) = (Lab::new(test_gpu()), Noise(11));
    for vocab in [152_064, 262_144] {
        check(&mut lab, "noise", &[noise.row(vocab, 1 << 24), noise.row(vocab, 100)]);
    }
}

#[test]
fn one_number_for_all_tokens() {
    let mut lab = Lab::new(test_gpu());
    for value in [0.0, -0.0, 3.5, -3.0e38, 1.0e-45] {
        check(&mut lab, "all equal", &[vec![value; 5000]]);
    }
    let signs: Vec<f32> = (0..5000u32).map(|i| if i.is_multiple_of(3) { 0.0 } else { -0.0 }).collect();
    check(&mut lab, "zeros of both signs", &[signs]);
}

#[test]
fn the_best_all_in_one_slice_one_per_slice_and_at_the_ends() {
    let (mut lab, mut noise) = (Lab::new(test_gpu()), Noise(3));
    let vocab = 150_000;
    let base: Vec<f32> = noise.row(vocab, 1 << 24).iter().map(|logit| logit - 100.0).collect();
    let with = |places: &mut dyn Iterator<Item = usize>| {
        let mut row = base.clone();
        places.zip(0u8..).for_each(|(at, i)| row[at] = f32::from(i % 5));
        row
    };
    let rows = [
        with(&mut (40_960..41_060)),
        with(&mut (0..70).map(|i| i * 2048 + 77)),
        with(&mut (0..100).map(|i| i * 32)),
        with(&mut [0, vocab - 1].into_iter()),
        with(&mut (vocab - 70..vocab).rev()),
    ];
    check(&mut lab, "placed", &rows);
    let rising: Vec<f32> = (0..vocab).map(|i| i as f32).collect();
    let falling: Vec<f32> = rising.iter().map(|logit| -logit).collect();
    check(&mut lab, "in order", &[rising, falling]);
}

#[test]
fn tiny_and_negative_logits() {
    let mut lab = Lab::new(test_gpu());
    let row: Vec<f32> = (0..4000u32).map(|i| f32::from_bits(((i * 7919) % 4000) | ((i % 2) << 31))).collect();
    check(&mut lab, "denormal", &[row]);
    let mut noise = Noise(17);
    let negative: Vec<f32> = noise.row(4000, 1 << 20).iter().map(|logit| -logit.abs() - 1.0).collect();
    check(&mut lab, "negative", &[negative]);
}

#[test]
fn what_is_no_logit_comes_first_and_what_is_excluded_last() {
    let (mut lab, mut noise) = (Lab::new(test_gpu()), Noise(23));
    let base = noise.row(9000, 1 << 20);
    let with = |placed: &[(usize, f32)]| {
        let mut row = base.clone();
        placed.iter().for_each(|&(at, value)| row[at] = value);
        row
    };
    let rows = [
        with(&[(5000, f32::NAN)]),
        with(&[(8999, INF), (7, -f32::NAN), (4000, f32::from_bits(0x7f80_0001))]),
        with(&[(100, 3.4e38), (101, INF)]),
        vec![f32::NAN; 9000],
        vec![-INF; 9000],
        [vec![-INF; 8990], vec![-1.0; 10]].concat(),
    ];
    check(&mut lab, "special", &rows);
}

#[test]
fn as_many_rows_as_are_computed_at_once() {
    let (mut lab, mut noise) = (Lab::new(test_gpu()), Noise(29));
    for count in [3, 17, 64] {
        let rows: Vec<_> = (0..count).map(|_| noise.row(4100, 3000)).collect();
        check(&mut lab, "rows", &rows);
    }
}

#[test]
fn more_than_kernels_choose_is_refused_by_name() {
    let case = TopCase { logits: &[0.0; 100], vocab_size: 100, count: 65, slice: 1024 };
    let error = Lab::new(test_gpu()).top(&case).unwrap_err().to_string();
    assert!(error.contains("65 best tokens"), "{error}");
}

/// Devices with little workgroup memory look through smaller slices. The table says so.
#[test]
fn slices_follow_the_workgroup_memory() {
    for (workgroup_memory, words) in [(16 << 10, "slices of 1024"), (32 << 10, "slices of 2048")] {
        let caps = Caps { workgroup_memory, ..test_gpu().caps().clone() };
        let rows = kernel_variants(&caps, Precision::Exact);
        let row = rows.iter().find(|row| row.purpose == "best tokens").unwrap();
        assert_eq!(row.variant, words.to_owned() + " logits");
    }
}

const LIMITS: StateLimits = StateLimits { max_positions: 256, max_bytes: 1 << 30 };

fn executor(name: &str) -> GpuExecutor {
    let folder = tempfile::tempdir().unwrap();
    open_model(&convert_fixture(name, Encoding::F32, folder.path())).gpu(Precision::Exact, LIMITS)
}

#[test]
fn steps_give_the_best_of_the_same_logits() {
    let mut gpu = executor("gemma2");
    let vocab = gpu.program().vocab_size;
    let tokens: Vec<u32> = golden("gemma2").sequences.swap_remove(2).input_ids.repeat(3)[..70].to_vec();
    let mut found = TopRows::default();
    // No row, one, some, more than are computed at once; the kernels' two sizes, and what the host chooses.
    let cases = [(vec![], 1..=1), (vec![69], 64..=65), (vec![0, 5, 6], 1..=2), ((0..70).collect(), 1..=2)];
    for (rows, counts) in cases {
        for count in counts {
            let sequence = gpu.states().open().unwrap();
            let spans = [Span { sequence, start: 0, len: 70, known_len: 0 }];
            let batch = Batch { tokens: &tokens, spans: &spans, logit_rows: &rows };
            let logits = gpu.step(&batch).unwrap().to_vec();
            gpu.states().truncate(sequence, 0).unwrap();
            gpu.step_top(&batch, count, &mut found).unwrap();
            gpu.states().close(sequence).unwrap();
            assert_eq!(found.rows(), rows.len());
            assert_eq!(gpu.logits().len(), if count > 64 { rows.len() * vocab } else { 0 });
            for (i, row) in logits.chunks_exact(vocab).enumerate() {
                assert_eq!(pairs(&found, i), sorted(row, count), "row {i} of {}, the best {count}", rows.len());
            }
        }
    }
    // All logits again: nothing of the choice is left.
    let sequence = gpu.states().open().unwrap();
    let spans = [Span { sequence, start: 0, len: 70, known_len: 0 }];
    assert_eq!(gpu.step(&Batch { tokens: &tokens, spans: &spans, logit_rows: &[3, 9] }).unwrap().len(), 2 * vocab);
}

#[test]
fn a_step_that_fails_leaves_the_next_one_as_it_would_be() {
    let mut top = executor("llama_gqa");
    let mut found = TopRows::default();
    let sequence = top.states().open().unwrap();
    let span = |start, len| [Span { sequence, start, len, known_len: 0 }];
    let wrong = Batch { tokens: &[1, 2], spans: &span(5, 2), logit_rows: &[1] };
    assert!(top.step_top(&wrong, 1, &mut found).is_err());
    let vocab = top.program().vocab_size;
    let logits = top.step(&Batch { tokens: &[1, 2], spans: &span(0, 2), logit_rows: &[1] }).unwrap().to_vec();
    assert_eq!(logits.len(), vocab);
    top.states().truncate(sequence, 0).unwrap();
    top.step_top(&Batch { tokens: &[1, 2], spans: &span(0, 2), logit_rows: &[1] }, 1, &mut found).unwrap();
    assert_eq!(pairs(&found, 0), sorted(&logits, 1));
}

#[test]
fn drafts_give_the_best_of_the_same_logits() {
    let mut gpu = executor("qwen3_5_vl_layout");
    let vocab = gpu.program().vocab_size;
    let tokens: Vec<u32> = (3..9).collect();
    let sequence = gpu.states().open().unwrap();
    let spans = [Span { sequence, start: 0, len: 6, known_len: 0 }];
    gpu.step(&Batch { tokens: &tokens, spans: &spans, logit_rows: &[] }).unwrap();
    let rows = [0, 1, 2, 3, 4, 5];
    let input = DraftInput { source: DraftSource::Step, rows: &rows, next: &tokens, logit_rows: &[2, 5] };
    let logits = gpu.draft(&input).unwrap().to_vec();
    let mut found = TopRows::default();
    gpu.draft_top(&input, 1, &mut found).unwrap();
    assert_eq!(found.rows(), 2);
    for (i, row) in logits.chunks_exact(vocab).enumerate() {
        assert_eq!(pairs(&found, i), sorted(row, 1), "row {i}");
    }
}

/// An engine on a fixture that guesses wherever it is asked to.
fn engine(name: &str, executor: ExecutorKind) -> Engine {
    let folder = tempfile::tempdir().unwrap();
    let file = CmfFile::open_owned(&convert_fixture(name, Encoding::F32, folder.path())).unwrap();
    let adapter = AdapterChoice { allow_software: true, ..AdapterChoice::default() };
    let gpu = GpuPlan { adapter, probe: Probe::Trust, ..GpuPlan::default() };
    let options = EngineOptions { executor, gpu, ..EngineOptions::default() };
    let mut engine = Engine::from_file(Arc::new(file), &options).unwrap();
    engine.set_always_speculate(true);
    engine
}

fn generate(engine: &mut Engine, sampling: &SamplingParams, speculative: Speculation) -> Vec<u32> {
    let options =
        GenerateOptions { max_tokens: 16, sampling: sampling.clone(), stop: Vec::new(), ignore_eos: true, speculative };
    let mut sequence = engine.sequence().unwrap();
    let prompt = [7, 9, 11, 7, 9, 11, 7, 9];
    let answer = engine.generate(&mut sequence, &prompt, &options, &mut |_| ControlFlow::Continue(())).unwrap();
    engine.close(sequence).unwrap();
    answer.tokens
}

/// Answers from the best tokens are those from all logits, which a bias of zero asks for.
#[test]
fn answers_do_not_depend_on_what_is_brought_back() {
    for executor in [ExecutorKind::Cpu, ExecutorKind::Gpu] {
        let mut engine = engine("qwen3_5_vl_layout", executor);
        for top_k in [0, 5, 64] {
            let best = match top_k {
                0 => SamplingParams::greedy(),
                _ => SamplingParams { temperature: 2.0, top_k, seed: Some(top_k.into()), ..SamplingParams::default() },
            };
            let all = SamplingParams { logit_bias: vec![(3, 0.0)], ..best.clone() };
            for speculative in
                [Speculation::Off, Speculation::NGram { draft_tokens: 3 }, Speculation::Mtp { draft_tokens: 2 }]
            {
                let (best, all) = (generate(&mut engine, &best, speculative), generate(&mut engine, &all, speculative));
                assert_eq!(best, all, "{executor:?}, top-k {top_k}, {speculative:?}");
            }
        }
    }
}

/// What is asked for is also what the device does.
#[test]
fn decoding_chooses_on_the_device_where_the_sampler_needs_no_more() {
    let mut engine = engine("llama_gqa", ExecutorKind::Gpu);
    let top_k = |top_k| SamplingParams { top_k, seed: Some(1), ..SamplingParams::default() };
    let biased = SamplingParams { logit_bias: vec![(3, 0.0)], ..top_k(20) };
    // The prompt, and every token but the last.
    for (sampling, choices) in [(SamplingParams::greedy(), 16), (top_k(20), 16), (top_k(65), 0), (biased, 0)] {
        engine.start_profile().unwrap();
        generate(&mut engine, &sampling, Speculation::Off);
        let times = engine.end_profile();
        let calls = |name| times.iter().find(|time| time.name == name).map_or(0, |time| time.calls);
        assert_eq!((calls("top_slice"), calls("top_join")), (choices, choices), "{sampling:?}");
    }
}
