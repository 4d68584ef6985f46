use cortiq_model::TopRows;

use super::*;

const INF: f32 = f32::INFINITY;

/// No rule but the draw at temperature 1.
fn plain() -> SamplingParams {
    SamplingParams { temperature: 1.0, top_p: 1.0, seed: Some(1), ..SamplingParams::default() }
}

fn distribution(params: SamplingParams, logits: &[f32]) -> Vec<(u32, f64)> {
    let mut sampler = Sampler::new(params, logits.len()).unwrap();
    let mut logits = logits.to_vec();
    let list = sampler.distribution(&mut logits).unwrap();
    list.iter().map(|c| (c.id, c.probability)).collect()
}

fn assert_close(got: &[(u32, f64)], expected: &[(u32, f64)], what: &str) {
    let same =
        got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() < 1e-6);
    assert!(same, "{what}: {got:?} instead of {expected:?}");
}

/// Logits of these probabilities.
fn logits_of(probabilities: &[f32]) -> Vec<f32> {
    probabilities.iter().map(|p| p.ln()).collect()
}

#[test]
fn each_rule_by_hand() {
    let l = logits_of(&[0.1, 0.4, 0.2, 0.3]);
    let tied = logits_of(&[0.2, 0.2, 0.2, 0.2, 0.2]);
    type Case<'a> = (&'a str, SamplingParams, &'a [f32], &'a [(u32, f64)]);
    let cases: &[Case] = &[
        ("no rule", plain(), &l, &[(0, 0.1), (1, 0.4), (2, 0.2), (3, 0.3)]),
        (
            // Squares: 1, 16, 4, 9 of 30.
            "temperature 0.5",
            SamplingParams { temperature: 0.5, ..plain() },
            &l,
            &[(0, 1.0 / 30.0), (1, 16.0 / 30.0), (2, 4.0 / 30.0), (3, 9.0 / 30.0)],
        ),
        ("top-k 2", SamplingParams { top_k: 2, ..plain() }, &l, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]),
        (
            "top-k above the vocabulary",
            SamplingParams { top_k: 9, ..plain() },
            &l,
            &[(1, 0.4), (3, 0.3), (2, 0.2), (0, 0.1)],
        ),
        (
            "top-k with ties takes exactly k, lower ids",
            SamplingParams { top_k: 2, ..plain() },
            &tied,
            &[(0, 0.5), (1, 0.5)],
        ),
        ("top-p 0.5", SamplingParams { top_p: 0.5, ..plain() }, &l, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]),
        ("top-p reached exactly", SamplingParams { top_p: 0.7, ..plain() }, &l, &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)]),
        (
            "top-p just above",
            SamplingParams { top_p: 0.71, ..plain() },
            &l,
            &[(1, 4.0 / 9.0), (3, 3.0 / 9.0), (2, 2.0 / 9.0)],
        ),
        ("top-p keeps one", SamplingParams { top_p: 1e-6, ..plain() }, &l, &[(1, 1.0)]),
        (
            // After top-k 3 the shares are 4/9, 3/9, 2/9: two reach 0.75 (7/9), which 0.7 of all would not.
            "top-p counts what top-k left",
            SamplingParams { top_k: 3, top_p: 0.75, ..plain() },
            &l,
            &[(1, 4.0 / 7.0), (3, 3.0 / 7.0)],
        ),
        (
            // Temperature 0.5 first: 16/30 alone reaches 0.5.
            "top-p comes after the temperature",
            SamplingParams { temperature: 0.5, top_p: 0.5, ..plain() },
            &l,
            &[(1, 1.0)],
        ),
        (
            "min-p 0.49",
            SamplingParams { min_p: 0.49, ..plain() },
            &l,
            &[(1, 4.0 / 9.0), (2, 2.0 / 9.0), (3, 3.0 / 9.0)],
        ),
        ("min-p 1", SamplingParams { min_p: 1.0, ..plain() }, &l, &[(1, 1.0)]),
        (
            "bias doubles a probability",
            SamplingParams { logit_bias: vec![(0, 2f32.ln())], ..plain() },
            &tied,
            &[(0, 2.0 / 6.0), (1, 1.0 / 6.0), (2, 1.0 / 6.0), (3, 1.0 / 6.0), (4, 1.0 / 6.0)],
        ),
        (
            "bias excludes a token",
            SamplingParams { logit_bias: vec![(1, -INF)], ..plain() },
            &l,
            &[(0, 0.1 / 0.6), (2, 0.2 / 0.6), (3, 0.3 / 0.6)],
        ),
        ("zero and minus zero are a tie", SamplingParams { top_k: 1, ..plain() }, &[-0.0, 0.0], &[(0, 1.0)]),
        (
            "a tiny temperature does not overflow",
            SamplingParams { temperature: 1e-30, top_k: 1, ..plain() },
            &[-3e38, 3e38, 0.0],
            &[(1, 1.0)],
        ),
        ("greedy", SamplingParams::greedy(), &[1.0, 3.0, 3.0, 2.0], &[(1, 1.0)]),
    ];
    for (what, params, logits, expected) in cases {
        assert_close(&distribution(params.clone(), logits), expected, what);
    }
}

#[test]
fn penalties_by_hand() {
    let adjusted = |params: SamplingParams| {
        let mut sampler = Sampler::new(params, 5).unwrap();
        // Token 0 in the prompt three times, 1 once in both, 2 three times in the answer.
        sampler.accept_prompt(&[0, 0, 1, 0]).unwrap();
        for id in [2, 1, 2, 2] {
            sampler.accept(id).unwrap();
        }
        let mut logits = [2.0, -2.0, 1.0, 4.0, -4.0];
        sampler.sample(&mut logits).unwrap();
        logits
    };
    let repetition = SamplingParams { repetition_penalty: 2.0, ..plain() };
    assert_eq!(adjusted(repetition), [1.0, -4.0, 0.5, 4.0, -4.0]);
    let presence = SamplingParams { presence_penalty: 0.5, ..plain() };
    assert_eq!(adjusted(presence), [2.0, -2.5, 0.5, 4.0, -4.0]);
    let frequency = SamplingParams { frequency_penalty: 0.5, ..plain() };
    assert_eq!(adjusted(frequency), [2.0, -2.5, -0.5, 4.0, -4.0]);
    let all = SamplingParams {
        repetition_penalty: 2.0,
        presence_penalty: 0.25,
        frequency_penalty: 0.5,
        logit_bias: vec![(0, 2.0), (3, -8.0)],
        ..plain()
    };
    // Bias first: token 0 is 4, divided by 2; token 3 is -4 and did not occur.
    assert_eq!(adjusted(all), [2.0, -4.75, -1.25, -4.0, -4.0]);
}

#[test]
fn greedy_takes_the_lowest_id_and_heeds_penalties() {
    let mut sampler = Sampler::new(SamplingParams::greedy(), 3).unwrap();
    assert_eq!(sampler.sample(&mut [1.0, 2.0, 2.0]).unwrap(), 1);
    assert_eq!(sampler.sample(&mut [-0.0, 0.0, -1.0]).unwrap(), 0);
    let penalised = SamplingParams { repetition_penalty: 3.0, ..SamplingParams::greedy() };
    let mut sampler = Sampler::new(penalised, 3).unwrap();
    sampler.accept(1).unwrap();
    assert_eq!(sampler.sample(&mut [1.0, 2.0, 0.5]).unwrap(), 0);
}

#[test]
fn bad_rows_are_errors() {
    for params in [plain(), SamplingParams::greedy(), SamplingParams { top_k: 1, ..plain() }] {
        let mut sampler = Sampler::new(params, 2).unwrap();
        let mut fails = |row: &mut [f32]| sampler.sample(row).unwrap_err();
        assert!(matches!(fails(&mut [0.0, f32::NAN]), EngineError::BadLogit { id: 1, .. }));
        assert!(matches!(fails(&mut [INF, 0.0]), EngineError::BadLogit { id: 0, .. }));
        assert!(matches!(fails(&mut [-INF, -INF]), EngineError::NoCandidate));
        assert!(matches!(fails(&mut [0.0]), EngineError::LogitsLength { expected: 2, actual: 1 }));
    }
    let biased = SamplingParams { logit_bias: vec![(2, 1.0)], ..plain() };
    let huge = SamplingParams { repetition_penalty: 0.1, ..plain() };
    let mut sampler = Sampler::new(huge, 2).unwrap();
    sampler.accept(0).unwrap();
    let overflow = sampler.sample(&mut [3e38, 0.0]).unwrap_err();
    assert!(matches!(overflow, EngineError::BadLogit { id: 0, .. }), "{overflow}");
    assert!(matches!(Sampler::new(biased, 2), Err(EngineError::TokenOutOfRange { id: 2, vocab: 2 })));
    let mut sampler = Sampler::new(plain(), 2).unwrap();
    assert!(sampler.accept(2).is_err());
    assert!(sampler.accept_prompt(&[0, 7]).is_err());
}

#[test]
fn parameters_outside_their_range_are_named() {
    let p = plain;
    let cases = [
        (SamplingParams { temperature: -0.1, ..p() }, "temperature is -0.1; allowed is 0 to 5"),
        (SamplingParams { temperature: 5.1, ..p() }, "temperature is 5.1"),
        (SamplingParams { temperature: f32::NAN, ..p() }, "temperature is NaN"),
        (SamplingParams { top_p: 0.0, ..p() }, "top_p is 0; allowed is above 0, at most 1"),
        (SamplingParams { top_p: 1.01, ..p() }, "top_p is 1.01"),
        (SamplingParams { min_p: -0.5, ..p() }, "min_p is -0.5"),
        (SamplingParams { min_p: INF, ..p() }, "min_p is inf"),
        (SamplingParams { repetition_penalty: 0.0, ..p() }, "repetition_penalty is 0"),
        (SamplingParams { presence_penalty: 2.5, ..p() }, "presence_penalty is 2.5"),
        (SamplingParams { frequency_penalty: -2.5, ..p() }, "frequency_penalty is -2.5"),
        (SamplingParams { logit_bias: vec![(0, 101.0)], ..p() }, "logit_bias is 101"),
        (SamplingParams { logit_bias: vec![(0, INF)], ..p() }, "logit_bias is inf"),
    ];
    for (params, message) in cases {
        let got = Sampler::new(params, 4).unwrap_err().to_string();
        assert!(got.starts_with(message), "{got} instead of {message}");
    }
    for params in [SamplingParams::default(), SamplingParams::greedy()] {
        params.validate().unwrap();
    }
}

#[test]
fn the_models_defaults_are_taken_over() {
    let none = SamplingParams::from_generation_defaults(&Default::default());
    assert_eq!(none, SamplingParams::default());
    let defaults = cortiq_cmf::GenerationDefaults {
        temperature: Some(0.6),
        top_p: Some(0.95),
        min_p: Some(0.01),
        repetition_penalty: Some(1.05),
        top_k: Some(20),
        do_sample: Some(true),
    };
    let got = SamplingParams::from_generation_defaults(&defaults);
    let expected = SamplingParams {
        temperature: 0.6,
        top_p: 0.95,
        min_p: 0.01,
        repetition_penalty: 1.05,
        top_k: 20,
        ..SamplingParams::default()
    };
    assert_eq!(got, expected);
    let greedy = cortiq_cmf::GenerationDefaults { do_sample: Some(false), ..defaults };
    assert_eq!(SamplingParams::from_generation_defaults(&greedy).temperature, 0.0);
}

fn draws(params: &SamplingParams, logits: &[f32], n: usize) -> Vec<u32> {
    let mut sampler = Sampler::new(params.clone(), logits.len()).unwrap();
    let mut row = logits.to_vec();
    (0..n)
        .map(|_| {
            row.copy_from_slice(logits);
            sampler.sample(&mut row).unwrap()
        })
        .collect()
}

/// Chi-square test of 100,000 draws; the seed is fixed, so the result is too. The bound is the 99.9 %
/// quantile for seven degrees of freedom.
#[test]
fn draws_follow_the_distribution() {
    let weights = [0.30, 0.20, 0.15, 0.12, 0.10, 0.08, 0.04, 0.01];
    let n = 100_000;
    // Sorted (top-k of all) and unsorted paths.
    for top_k in [0, 8] {
        let params = SamplingParams { top_k, seed: Some(7), ..plain() };
        let mut counts = [0u32; 8];
        for id in draws(&params, &logits_of(&weights), n) {
            counts[id as usize] += 1;
        }
        let chi_square: f64 = counts
            .iter()
            .zip(weights)
            .map(|(&count, p)| {
                let expected = f64::from(p) * n as f64;
                (f64::from(count) - expected).powi(2) / expected
            })
            .sum();
        assert!(chi_square < 24.32, "top_k {top_k}: {chi_square} {counts:?}");
    }
}

#[test]
fn seeds_repeat_and_differ() {
    let flat = [0.0f32; 50];
    let seeded = |seed| draws(&SamplingParams { seed, ..plain() }, &flat, 40);
    assert_eq!(seeded(Some(3)), seeded(Some(3)));
    assert_ne!(seeded(Some(3)), seeded(Some(4)));
    let unseeded = Sampler::new(SamplingParams { seed: None, ..plain() }, 50).unwrap();
    let other = Sampler::new(SamplingParams { seed: None, ..plain() }, 50).unwrap();
    assert_ne!(unseeded.seed(), other.seed());
    // The reported seed repeats the run.
    let mut unseeded = unseeded;
    let again: Vec<u32> = (0..40).map(|_| unseeded.sample(&mut flat.clone()).unwrap()).collect();
    assert_eq!(again, seeded(Some(unseeded.seed())));
}

/// Partial selection gives what sorting the whole vocabulary gives, ties included.
#[test]
fn selection_equals_a_full_sort() {
    let vocab = 5000;
    let mut state = 99u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f32 / (1u64 << 31) as f32
    };
    for round in 0..20 {
        // Few distinct values give many ties; a wide range gives a short nucleus.
        let spread = [0.5, 4.0, 12.0, 30.0][round % 4];
        let logits: Vec<f32> = (0..vocab).map(|_| (next() * 40.0).floor() / 40.0 * spread).collect();
        for (top_k, top_p) in [(0, 0.5f32), (0, 0.99), (300, 0.9), (64, 1.0), (4999, 0.3)] {
            let got = distribution(SamplingParams { top_k, top_p, ..plain() }, &logits);
            let mut sorted: Vec<(u32, f64)> = (0u32..).zip(&logits).map(|(id, &l)| (id, f64::from(l).exp())).collect();
            sorted.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            if top_k > 0 {
                sorted.truncate(top_k as usize);
            }
            let total: f64 = sorted.iter().map(|c| c.1).sum();
            let mut sum = 0.0;
            let needed = sorted.iter().position(|c| {
                sum += c.1;
                (sum / total) as f32 >= top_p
            });
            sorted.truncate(needed.map_or(sorted.len(), |n| n + 1));
            let kept: f64 = sorted.iter().map(|c| c.1).sum();
            for c in &mut sorted {
                c.1 /= kept;
            }
            // The two sums differ in rounding: one token more or less at the border is no fault.
            let shorter = got.len().min(sorted.len());
            assert!(got.len().abs_diff(sorted.len()) <= 1, "{} {}", got.len(), sorted.len());
            let ids = |list: &[(u32, f64)]| list[..shorter].iter().map(|c| c.0).collect::<Vec<_>>();
            assert_eq!(ids(&got), ids(&sorted), "top_k {top_k} top_p {top_p}");
        }
    }
}

#[test]
fn buffers_are_reused() {
    let mut sampler = Sampler::new(SamplingParams { seed: Some(1), ..plain() }, 1000).unwrap();
    let mut row = vec![0.0; 1000];
    sampler.sample(&mut row).unwrap();
    let before = sampler.candidates.as_slice().as_ptr();
    for _ in 0..50 {
        sampler.sample(&mut row).unwrap();
    }
    assert_eq!(sampler.candidates.as_slice().as_ptr(), before);
}

/// The best tokens of a row, as many as the sampler wants.
fn best_tokens(sampler: &Sampler, logits: &[f32]) -> TopRows {
    let Wanted::Top(count) = sampler.wants() else { panic!("{:?} wants all logits", sampler.params()) };
    let mut rows = TopRows::default();
    rows.fill(count, logits.len(), logits);
    rows
}

#[test]
fn what_a_sampler_wants() {
    let greedy = SamplingParams::greedy;
    let top_k = |top_k| SamplingParams { top_k, ..SamplingParams::default() };
    let cases = [
        (greedy(), Wanted::Top(1)),
        // Top-k does not matter then.
        (SamplingParams { top_k: 40, ..greedy() }, Wanted::Top(1)),
        (SamplingParams { repetition_penalty: 1.1, ..greedy() }, Wanted::Logits),
        (SamplingParams { presence_penalty: -0.5, ..greedy() }, Wanted::Logits),
        (SamplingParams { frequency_penalty: 0.5, ..greedy() }, Wanted::Logits),
        (SamplingParams { logit_bias: vec![(3, 1.0)], ..greedy() }, Wanted::Logits),
        (top_k(0), Wanted::Logits),
        (top_k(1), Wanted::Top(1)),
        (top_k(64), Wanted::Top(64)),
        (top_k(65), Wanted::Logits),
        (top_k(u32::MAX), Wanted::Logits),
        (SamplingParams { frequency_penalty: 0.5, ..top_k(20) }, Wanted::Logits),
        (SamplingParams { logit_bias: vec![(3, 1.0)], ..top_k(20) }, Wanted::Logits),
    ];
    for (params, wanted) in cases {
        assert_eq!(Sampler::new(params.clone(), 100).unwrap().wants(), wanted, "{params:?}");
    }
}

/// The same seed gives the same tokens, and the same probabilities to the last bit, from the best tokens and from all.
#[test]
fn the_best_tokens_are_enough() {
    let mut state = 5u64;
    let mut next = |levels: u32| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32 % levels
    };
    let rules = [(1.0f32, 1.0f32, 0.0f32), (0.7, 0.9, 0.0), (5.0, 0.5, 0.01), (0.2, 1.0, 0.3), (1e-3, 0.99, 0.0)];
    let (mut drawn, mut tied) = (0, 0);
    for round in 0..60u64 {
        // Few levels: ties everywhere, at the border of top-k too. Zeros of both signs, excluded tokens.
        let levels = [4, 30, 1 << 20][round as usize % 3];
        let vocab = [70, 5, 3000, 40][round as usize % 4];
        let mut logits: Vec<f32> =
            (0..vocab).map(|_| (next(levels) as f32 - levels as f32 / 2.0) * (8.0 / levels as f32)).collect();
        for logit in &mut logits {
            *logit = match next(40) {
                0 => -0.0,
                1 => 0.0,
                2 => -INF,
                _ => *logit,
            };
        }
        for top_k in [0, 1, 2, 5, 20, 40, 64] {
            for (temperature, top_p, min_p) in rules {
                let temperature = if top_k == 0 { 0.0 } else { temperature };
                let seed = Some(round);
                let params = SamplingParams { temperature, top_k, top_p, min_p, seed, ..plain() };
                let what = format!("{params:?}, {vocab} tokens of {levels} levels");
                let mut from_all = Sampler::new(params.clone(), vocab).unwrap();
                let mut from_best = Sampler::new(params, vocab).unwrap();
                let best = best_tokens(&from_best, &logits);
                for _ in 0..8 {
                    let ours = from_best.choose(Prediction::Top(best.row(0))).unwrap();
                    let theirs = from_all.choose(Prediction::Logits(&mut logits.clone())).unwrap();
                    assert_eq!(ours, theirs, "{what}");
                    drawn += 1;
                }
                if temperature > 0.0 {
                    let bits = |sampler: &Sampler| -> Vec<(u32, u64)> {
                        let list = sampler.candidates.as_slice();
                        list.iter().map(|c| (c.id, c.probability.to_bits())).collect()
                    };
                    assert_eq!(bits(&from_best), bits(&from_all), "{what}");
                    let border = best.row(0).last().unwrap().logit;
                    tied += usize::from(logits.iter().filter(|logit| **logit == border).count() > 1);
                }
            }
        }
    }
    assert!(drawn > 10_000 && tied > 500, "{drawn} draws, {tied} with a tie at the border");
}

#[test]
fn bad_rows_are_the_same_errors_from_the_best_tokens() {
    let rows: [&[f32]; 6] = [
        &[0.0, f32::NAN, 3.0, INF],
        &[INF, 0.0, 1.0, f32::NAN],
        &[0.0, 1.0, 2.0, -f32::NAN],
        &[-INF; 4],
        &[-INF, -INF, -3e38, -INF],
        &[3e38, -3e38, 0.0, -0.0],
    ];
    for params in [SamplingParams::greedy(), SamplingParams { top_k: 2, ..plain() }] {
        for row in rows {
            let mut sampler = Sampler::new(params.clone(), 4).unwrap();
            let best = best_tokens(&sampler, row);
            let ours = sampler.clone().choose(Prediction::Top(best.row(0))).map_err(|error| error.to_string());
            let theirs = sampler.sample(&mut row.to_vec()).map_err(|error| error.to_string());
            assert_eq!(ours, theirs, "{row:?}");
        }
        // Not what it asked for.
        let mut sampler = Sampler::new(params.clone(), 4).unwrap();
        let none = sampler.choose(Prediction::Top(&[])).unwrap_err();
        assert!(matches!(none, EngineError::LogitsLength { actual: 0, .. }), "{none}");
    }
    let mut sampler = Sampler::new(plain(), 4).unwrap();
    let best = [TopLogit { id: 0, logit: 1.0 }];
    let refused = sampler.choose(Prediction::Top(&best)).unwrap_err();
    assert!(matches!(refused, EngineError::LogitsLength { expected: 4, actual: 1 }), "{refused}");
}
