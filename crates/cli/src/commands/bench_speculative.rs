//! The part of `cortiq bench` that compares greedy answers with and without guessing ahead.

use std::ops::ControlFlow;

use anyhow::anyhow;
use cortiq_engine::{Engine, GenerateOptions, Generation, SamplingParams, Speculation};
use serde::Serialize;

use crate::commands::bench::Spread;
use crate::speculative_options::Guesses;

/// Speed of the same answer both ways.
#[derive(Serialize)]
pub struct Comparison {
    #[serde(flatten)]
    guesses: Guesses,
    prompt_tokens: usize,
    predicted_tokens: usize,
    plain_tok_s: Spread,
    tok_s: Spread,
    speedup: f64,
}

impl Comparison {
    /// One line for people.
    pub fn line(&self) -> String {
        let Guesses { kind, drafted, accepted } = self.guesses;
        format!(
            "greedy answer of {} tokens with {kind}: {:.2} tok/s, without {:.2}, {:.2} times as fast; \
             {accepted} of {drafted} guesses right\n",
            self.predicted_tokens, self.tok_s.median, self.plain_tok_s.median, self.speedup
        )
    }
}

/// Answers `prompt` with `count` tokens, `repetitions` times each way in turn, after one round without the clock.
pub fn compare(
    engine: &mut Engine,
    prompt: &[u32],
    count: usize,
    speculative: Speculation,
    repetitions: usize,
) -> anyhow::Result<Comparison> {
    let mut times = [Vec::new(), Vec::new()];
    let mut last = None;
    for round in 0..=repetitions {
        for (times, how) in times.iter_mut().zip([Speculation::Off, speculative]) {
            let generation = answer(engine, prompt, count, how)?;
            if round > 0 {
                times.push(generation.predicted_time.as_secs_f64());
            }
            last = Some(generation);
        }
    }
    let guesses = last.as_ref().and_then(Guesses::of).ok_or_else(|| anyhow!("nothing was guessed"))?;
    let [plain, guessing] = times;
    let (plain_tok_s, tok_s) = (Spread::of(count, &plain), Spread::of(count, &guessing));
    let speedup = tok_s.median / plain_tok_s.median;
    Ok(Comparison { guesses, prompt_tokens: prompt.len(), predicted_tokens: count, plain_tok_s, tok_s, speedup })
}

fn answer(engine: &mut Engine, prompt: &[u32], count: usize, speculative: Speculation) -> anyhow::Result<Generation> {
    let options = GenerateOptions {
        max_tokens: count,
        sampling: SamplingParams::greedy(),
        stop: Vec::new(),
        ignore_eos: true,
        speculative,
    };
    let mut sequence = engine.sequence()?;
    let outcome = engine.generate(&mut sequence, prompt, &options, &mut |_| ControlFlow::Continue(()));
    engine.close(sequence)?;
    Ok(outcome?)
}
