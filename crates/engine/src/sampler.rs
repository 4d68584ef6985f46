//! The sampler: chooses the next token of one sequence from the logits of the model.
//!
//! The rules apply in this order: logit bias, penalties, temperature, top-k, top-p, min-p, draw.
//! The same parameters, seed and logits always give the same tokens.

mod candidates;
pub mod logprobs;
mod params;

use std::collections::HashMap;

use cortiq_model::{TopLogit, Wanted};
use rand::rngs::SysRng;
use rand::{Rng, SeedableRng, TryRng};
use rand_chacha::ChaCha8Rng;

use crate::{EngineError, Prediction};
pub use candidates::Candidate;
use candidates::CandidateList;
pub use params::SamplingParams;

/// Largest top-k for which the best tokens alone are asked for: more are hardly fewer than all to draw from.
const MOST_CANDIDATES: usize = 64;

/// Chooses the tokens of one sequence. A clone continues on its own with the same random numbers.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    vocab: usize,
    seed: u64,
    rng: ChaCha8Rng,
    /// Tokens that occurred in the prompt or the answer, with the number of times in the answer.
    /// Kept only where a penalty needs it.
    seen: HashMap<u32, u32>,
    candidates: CandidateList,
}

impl Sampler {
    /// Makes a sampler for rows of `vocab` logits. Without a seed in `params` one is taken from the
    /// operating system; [`Sampler::seed`] tells it.
    ///
    /// # Errors
    /// [`EngineError::SamplingParameter`] for a parameter outside its range,
    /// [`EngineError::TokenOutOfRange`] for a bias on a token that does not exist,
    /// [`EngineError::Entropy`] where the operating system gives no seed.
    pub fn new(params: SamplingParams, vocab: usize) -> Result<Self, EngineError> {
        params.validate()?;
        for &(id, _) in &params.logit_bias {
            check_id(id, vocab)?;
        }
        let seed = match params.seed {
            Some(seed) => seed,
            None => SysRng.try_next_u64().map_err(|e| EngineError::Entropy(e.to_string()))?,
        };
        Ok(Self {
            params,
            vocab,
            seed,
            rng: ChaCha8Rng::seed_from_u64(seed),
            seen: HashMap::new(),
            candidates: CandidateList::default(),
        })
    }

    /// The seed in use, so that an unseeded run can be repeated.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The parameters in use.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// Counts the prompt's tokens, for the repetition penalty.
    ///
    /// # Errors
    /// [`EngineError::TokenOutOfRange`].
    pub fn accept_prompt(&mut self, ids: &[u32]) -> Result<(), EngineError> {
        for &id in ids {
            check_id(id, self.vocab)?;
            if self.params.has_penalty() {
                self.seen.entry(id).or_insert(0);
            }
        }
        Ok(())
    }

    /// Counts a token of the answer, for all penalties. The engine calls it for each token it keeps.
    ///
    /// # Errors
    /// [`EngineError::TokenOutOfRange`].
    pub fn accept(&mut self, id: u32) -> Result<(), EngineError> {
        check_id(id, self.vocab)?;
        if self.params.has_penalty() {
            let count = self.seen.entry(id).or_insert(0);
            *count = count.saturating_add(1);
        }
        Ok(())
    }

    /// What is needed of a row to choose from it as from all its logits.
    pub fn wants(&self) -> Wanted {
        let p = &self.params;
        // Both change the order of the tokens.
        if p.has_penalty() || !p.logit_bias.is_empty() {
            return Wanted::Logits;
        }
        match usize::try_from(p.top_k) {
            _ if p.temperature == 0.0 => Wanted::Top(1),
            Ok(top_k @ 1..=MOST_CANDIDATES) => Wanted::Top(top_k),
            _ => Wanted::Logits,
        }
    }

    /// Chooses the next token from what [`Sampler::wants`] asked for. From the best tokens it is the one that all
    /// logits and the same random number give: top-k comes before all rules that compare tokens with each other.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn choose(&mut self, prediction: Prediction<'_>) -> Result<u32, EngineError> {
        match (prediction, self.wants()) {
            (Prediction::Logits(logits), _) => self.sample(logits),
            (Prediction::Top(tokens), Wanted::Top(count)) => self.sample_top(tokens, count),
            (Prediction::Top(tokens), Wanted::Logits) => {
                Err(EngineError::LogitsLength { expected: self.vocab, actual: tokens.len() })
            }
        }
    }

    fn sample_top(&mut self, tokens: &[TopLogit], count: usize) -> Result<u32, EngineError> {
        let expected = count.min(self.vocab);
        if tokens.len() != expected {
            return Err(EngineError::LogitsLength { expected, actual: tokens.len() });
        }
        let best = best_of(tokens)?;
        if self.params.temperature == 0.0 {
            return Ok(best);
        }
        self.candidates.select_top(tokens, &self.params)?;
        let u = uniform(&mut self.rng);
        self.candidates.draw(u)
    }

    /// Chooses the next token. `logits` has one value per token of the vocabulary, unscaled; biases and
    /// penalties are applied in place. The choice is not counted: see [`Sampler::accept`].
    ///
    /// # Errors
    /// [`EngineError::LogitsLength`], [`EngineError::BadLogit`] for NaN or +inf,
    /// [`EngineError::NoCandidate`] where all logits are -inf.
    pub fn sample(&mut self, logits: &mut [f32]) -> Result<u32, EngineError> {
        self.adjust(logits)?;
        if self.params.temperature == 0.0 {
            return argmax(logits);
        }
        self.candidates.select(logits, &self.params)?;
        let u = uniform(&mut self.rng);
        self.candidates.draw(u)
    }

    /// The tokens [`Sampler::sample`] would draw from, with their probabilities (sum 1); in greedy mode
    /// the one token. Draws nothing.
    ///
    /// # Errors
    /// As [`Sampler::sample`].
    pub fn distribution(&mut self, logits: &mut [f32]) -> Result<&[Candidate], EngineError> {
        self.adjust(logits)?;
        if self.params.temperature == 0.0 {
            let id = argmax(logits)?;
            self.candidates.set_only(id);
        } else {
            self.candidates.select(logits, &self.params)?;
            self.candidates.normalise();
        }
        Ok(self.candidates.as_slice())
    }

    /// Checks the row and applies biases and penalties.
    fn adjust(&self, logits: &mut [f32]) -> Result<(), EngineError> {
        if logits.len() != self.vocab {
            return Err(EngineError::LogitsLength { expected: self.vocab, actual: logits.len() });
        }
        for &(id, bias) in &self.params.logit_bias {
            update(logits, id, |logit| logit + bias);
        }
        let p = &self.params;
        for (&id, &count) in &self.seen {
            update(logits, id, |logit| {
                let repeated = if logit > 0.0 { logit / p.repetition_penalty } else { logit * p.repetition_penalty };
                let presence = if count > 0 { p.presence_penalty } else { 0.0 };
                repeated - presence - p.frequency_penalty * count as f32
            });
        }
        // After the changes, which neither hide a bad value nor are safe from making one (3e38 / 0.1).
        check_logits(logits)
    }
}

fn check_id(id: u32, vocab: usize) -> Result<(), EngineError> {
    match usize::try_from(id) {
        Ok(index) if index < vocab => Ok(()),
        _ => Err(EngineError::TokenOutOfRange { id, vocab }),
    }
}

fn update(logits: &mut [f32], id: u32, change: impl FnOnce(f32) -> f32) {
    if let Some(logit) = usize::try_from(id).ok().and_then(|i| logits.get_mut(i)) {
        *logit = change(*logit);
    }
}

/// Fails on NaN and +inf; -inf excludes a token and is allowed.
pub(crate) fn check_logits(logits: &[f32]) -> Result<(), EngineError> {
    let bad = logits.iter().position(|l| l.is_nan() || *l == f32::INFINITY);
    match bad {
        None => Ok(()),
        Some(index) => Err(EngineError::BadLogit {
            id: u32::try_from(index).unwrap_or(u32::MAX),
            value: logits.get(index).copied().unwrap_or(f32::NAN),
        }),
    }
}

/// The token with the largest logit, the lowest id among equal ones.
///
/// # Errors
/// [`EngineError::BadLogit`] for NaN or +inf; [`EngineError::NoCandidate`] where there is none above -inf.
pub fn argmax(logits: &[f32]) -> Result<u32, EngineError> {
    check_logits(logits)?;
    let mut best = None;
    let mut largest = f32::NEG_INFINITY;
    for (id, &logit) in (0u32..).zip(logits) {
        if logit > largest {
            largest = logit;
            best = Some(id);
        }
    }
    best.ok_or(EngineError::NoCandidate)
}

/// [`argmax`] of a row of which the best tokens are known, one at least.
pub(crate) fn best_of(tokens: &[TopLogit]) -> Result<u32, EngineError> {
    match tokens.first() {
        // What is no logit comes first.
        Some(&TopLogit { id, logit }) if logit.is_nan() || logit == f32::INFINITY => {
            Err(EngineError::BadLogit { id, value: logit })
        }
        Some(&TopLogit { id, logit }) if logit > f32::NEG_INFINITY => Ok(id),
        _ => Err(EngineError::NoCandidate),
    }
}

/// A uniform number in [0, 1) from the top 53 bits of one 64-bit output.
fn uniform(rng: &mut ChaCha8Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests;
