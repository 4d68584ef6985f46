//! Temperature, top-k, top-p, min-p and the draw.

use std::cmp::Ordering;

use cortiq_model::TopLogit;

use super::SamplingParams;
use crate::EngineError;

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token.
    pub id: u32,
    /// Its probability. While candidates are being selected: its share of the best token's probability.
    pub probability: f64,
    logit: f32,
}

/// The tokens left to draw from. The buffer is reused from token to token.
#[derive(Debug, Clone, Default)]
pub(super) struct CandidateList {
    list: Vec<Candidate>,
}

/// Number of best tokens looked at first to reach top-p; it grows by [`GROWTH`] until they do.
const FIRST_GUESS: usize = 64;
/// Factor by which the number of sorted tokens grows.
const GROWTH: usize = 8;

impl CandidateList {
    /// Fills the list from `logits` by the rules of `params` (temperature above 0).
    ///
    /// The order is fixed: best first with ties by id where top-k or top-p sorted, else by id.
    pub(super) fn select(&mut self, logits: &[f32], params: &SamplingParams) -> Result<(), EngineError> {
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        if best == f32::NEG_INFINITY {
            return Err(EngineError::NoCandidate);
        }
        self.list.clear();
        let allowed = (0u32..).zip(logits).filter(|(_, l)| **l > f32::NEG_INFINITY);
        self.list.extend(allowed.map(|(id, &logit)| Candidate { id, probability: 0.0, logit }));
        if let Ok(k) = usize::try_from(params.top_k)
            && k > 0
        {
            self.keep_best(k);
        }
        self.weigh(best, params);
        Ok(())
    }

    /// [`CandidateList::select`] from the `top_k` best tokens of a row, sorted.
    pub(super) fn select_top(&mut self, tokens: &[TopLogit], params: &SamplingParams) -> Result<(), EngineError> {
        let best = tokens.first().map_or(f32::NEG_INFINITY, |token| token.logit);
        if best == f32::NEG_INFINITY {
            return Err(EngineError::NoCandidate);
        }
        self.list.clear();
        let allowed = tokens.iter().filter(|token| token.logit > f32::NEG_INFINITY);
        self.list.extend(allowed.map(|&TopLogit { id, logit }| Candidate { id, probability: 0.0, logit }));
        self.weigh(best, params);
        Ok(())
    }

    /// Temperature, top-p and min-p, once top-k has been applied; `best` is the largest logit.
    fn weigh(&mut self, best: f32, params: &SamplingParams) {
        // The best logit is subtracted first, so that a small temperature cannot overflow.
        let scale = 1.0 / f64::from(params.temperature);
        for c in &mut self.list {
            c.probability = ((f64::from(c.logit) - f64::from(best)) * scale).exp();
        }
        if params.top_p < 1.0 {
            self.keep_nucleus(params.top_p);
        }
        if params.min_p > 0.0 {
            self.list.retain(|c| c.probability as f32 >= params.min_p);
        }
    }

    /// Keeps the `k` best, sorted.
    fn keep_best(&mut self, k: usize) {
        if k < self.list.len() {
            self.list.select_nth_unstable_by(k - 1, best_first);
            self.list.truncate(k);
        }
        self.list.sort_unstable_by(best_first);
    }

    /// Keeps the shortest sorted prefix whose probabilities reach `top_p`; sorts no more than needed.
    fn keep_nucleus(&mut self, top_p: f32) {
        let total: f64 = self.list.iter().map(|c| c.probability).sum();
        let mut sum = 0.0;
        let mut sorted = 0;
        let mut guess = FIRST_GUESS;
        while sorted < self.list.len() {
            let end = guess.min(self.list.len());
            let Some(rest) = self.list.get_mut(sorted..) else {
                break;
            };
            if end - sorted < rest.len() {
                rest.select_nth_unstable_by(end - sorted, best_first);
            }
            if let Some(chunk) = rest.get_mut(..end - sorted) {
                chunk.sort_unstable_by(best_first);
                for (offset, c) in chunk.iter().enumerate() {
                    sum += c.probability;
                    // Compared as f32: top_p is one, and 0.8 shall mean 0.8.
                    if (sum / total) as f32 >= top_p {
                        self.list.truncate(sorted + offset + 1);
                        return;
                    }
                }
            }
            sorted = end;
            guess = guess.saturating_mul(GROWTH);
        }
    }

    /// Makes the probabilities sum to 1.
    pub(super) fn normalise(&mut self) {
        let total: f64 = self.list.iter().map(|c| c.probability).sum();
        for c in &mut self.list {
            c.probability /= total;
        }
    }

    /// Draws one token with a uniform number in [0, 1).
    pub(super) fn draw(&self, u: f64) -> Result<u32, EngineError> {
        let total: f64 = self.list.iter().map(|c| c.probability).sum();
        let mut left = u * total;
        let mut last = None;
        for c in &self.list {
            if c.probability > 0.0 {
                last = Some(c.id);
                if left < c.probability {
                    break;
                }
            }
            left -= c.probability;
        }
        last.ok_or(EngineError::NoCandidate)
    }

    /// Makes `id` the only candidate.
    pub(super) fn set_only(&mut self, id: u32) {
        self.list.clear();
        self.list.push(Candidate { id, probability: 1.0, logit: 0.0 });
    }

    pub(super) fn as_slice(&self) -> &[Candidate] {
        &self.list
    }
}

/// Larger logits first, then lower ids. No logit is NaN here.
fn best_first(a: &Candidate, b: &Candidate) -> Ordering {
    // Not total_cmp: 0 and -0 are a tie.
    let by_logit = b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal);
    by_logit.then(a.id.cmp(&b.id))
}
