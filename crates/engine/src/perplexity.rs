//! Perplexity of a text.

use crate::{Engine, EngineError, LogitRows};

/// How a text is cut and scored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerplexityOptions {
    /// Positions per window, the prefix included. Windows do not overlap; the last may be shorter.
    pub window: usize,
    /// Score only the last `stride` positions of each window.
    pub stride: Option<usize>,
    /// Token put in front of each window and not scored.
    pub prefix: Option<u32>,
}

/// Result of a scoring.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Perplexity {
    /// Positions scored.
    pub tokens: usize,
    /// Mean negative log-likelihood, in nats.
    pub nll_mean: f64,
}

impl Perplexity {
    /// `exp(nll_mean)`.
    pub fn perplexity(&self) -> f64 {
        self.nll_mean.exp()
    }
}

/// Positions whose logits are computed together: bounds the memory for logits.
const ROWS: usize = 64;

/// `-log softmax(logits)[id]`, sums in f64.
fn nll(logits: &[f32], id: u32) -> f64 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    sum.ln() - logits.get(id as usize).map_or(f64::NEG_INFINITY, |l| f64::from(l - max))
}

impl Engine {
    /// Scores `ids`; `progress(done, total)` is called after each window.
    pub fn perplexity(
        &mut self,
        ids: &[u32],
        options: &PerplexityOptions,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Perplexity, EngineError> {
        let own = options.window.saturating_sub(usize::from(options.prefix.is_some()));
        if options.window < 2 || options.window > self.context() {
            return Err(EngineError::Window { asked: options.window, context: self.context() });
        }
        let stride = options.stride.unwrap_or(options.window);
        if stride == 0 || stride > options.window {
            return Err(EngineError::Stride { asked: stride, window: options.window });
        }
        let (mut total, mut count) = (0.0, 0);
        let windows = ids.len().div_ceil(own);
        for (done, run) in ids.chunks(own).enumerate() {
            let window: Vec<u32> = options.prefix.iter().copied().chain(run.iter().copied()).collect();
            if window.len() >= 2 {
                self.check_window(&window)?;
                let first = window.len().saturating_sub(stride).max(1);
                total += self.score(&window, first)?;
                count += window.len() - first;
            }
            progress(done + 1, windows);
        }
        if count == 0 {
            return Err(EngineError::NothingToScore(ids.len()));
        }
        Ok(Perplexity { tokens: count, nll_mean: total / count as f64 })
    }

    fn check_window(&self, window: &[u32]) -> Result<(), EngineError> {
        match window.iter().find(|&&id| id as usize >= self.vocab_size()) {
            Some(&id) => Err(EngineError::TokenOutOfRange { id, vocab: self.vocab_size() }),
            None => Ok(()),
        }
    }

    /// Sum of the negative log-likelihoods of `window[first..]`.
    fn score(&mut self, window: &[u32], first: usize) -> Result<f64, EngineError> {
        let vocab_size = self.vocab_size();
        let mut sequence = self.sequence()?;
        sequence.known_len = window.len();
        let mut total = 0.0;
        let inputs = &window[..window.len() - 1];
        let outcome = inputs.chunks(ROWS).enumerate().try_for_each(|(i, chunk)| {
            let start = i * ROWS;
            let rows = if start + chunk.len() < first { LogitRows::None } else { LogitRows::All };
            let logits = self.extend(&mut sequence, chunk, rows)?;
            for (j, row) in logits.chunks_exact(vocab_size).enumerate() {
                let target = start + j + 1;
                if target >= first {
                    total += nll(row, window[target]);
                }
            }
            Ok::<(), EngineError>(())
        });
        self.close(sequence)?;
        outcome.map(|()| total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nll_of_known_logits() {
        assert!((nll(&[0.0, 0.0, 0.0, 0.0], 2) - 4f64.ln()).abs() < 1e-12);
        assert!((nll(&[100.0, 0.0], 0)).abs() < 1e-12);
        assert!((nll(&[2f32.ln(), 0.0], 1) - 3f64.ln()).abs() < 1e-6);
    }
}
