//! Log-probabilities of tokens, for requests that ask for them.

use super::check_logits;
use crate::EngineError;

/// Log-probability of a chosen token and of the most probable ones.
#[derive(Debug, Clone, PartialEq)]
pub struct TokenLogprobs {
    /// Natural logarithm of the chosen token's probability.
    pub chosen: f32,
    /// The most probable tokens, best first (ties: lower id first), with theirs.
    pub top: Vec<(u32, f32)>,
}

/// Log-softmax of `logits` (one per token of the vocabulary) at `chosen` and at the `top_n` best tokens.
/// An excluded token (logit -inf) has -inf.
///
/// # Errors
/// [`EngineError::TokenOutOfRange`], [`EngineError::BadLogit`] for NaN or +inf,
/// [`EngineError::NoCandidate`] where all logits are -inf.
pub fn logprobs(logits: &[f32], chosen: u32, top_n: usize) -> Result<TokenLogprobs, EngineError> {
    check_logits(logits)?;
    let chosen_logit = usize::try_from(chosen)
        .ok()
        .and_then(|i| logits.get(i))
        .copied()
        .ok_or(EngineError::TokenOutOfRange { id: chosen, vocab: logits.len() })?;
    let best = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    if best == f64::NEG_INFINITY {
        return Err(EngineError::NoCandidate);
    }
    let sum: f64 = logits.iter().map(|&l| (f64::from(l) - best).exp()).sum();
    // In this order, since `best + ln(sum)` would lose the logarithm beside a large logit.
    let logprob = |logit: f32| ((f64::from(logit) - best) - sum.ln()) as f32;
    let mut top: Vec<(u32, f32)> = Vec::new();
    if top_n > 0 {
        let order = |a: &(u32, f32), b: &(u32, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        top.extend((0u32..).zip(logits.iter().copied()));
        if top_n < top.len() {
            top.select_nth_unstable_by(top_n - 1, order);
            top.truncate(top_n);
        }
        top.sort_unstable_by(order);
    }
    for (_, value) in &mut top {
        *value = logprob(*value);
    }
    Ok(TokenLogprobs { chosen: logprob(chosen_logit), top })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hand_computed() {
        // Probabilities 0.5, 0.25, 0.25, 0.
        let logits = [2f32.ln(), 0.0, 0.0, f32::NEG_INFINITY];
        let got = logprobs(&logits, 2, 2).unwrap();
        assert!((f64::from(got.chosen) - 0.25f64.ln()).abs() < 1e-6);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [0, 1]);
        assert!((f64::from(got.top[0].1) - 0.5f64.ln()).abs() < 1e-6);
        let all = logprobs(&logits, 3, 9).unwrap();
        assert_eq!(all.chosen, f32::NEG_INFINITY);
        assert_eq!(all.top.len(), 4);
        assert_eq!(logprobs(&logits, 0, 0).unwrap().top, []);
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let got = logprobs(&[3e38, 3e38], 0, 1).unwrap();
        assert!((f64::from(got.chosen) - 0.5f64.ln()).abs() < 1e-6, "{got:?}");
    }

    #[test]
    fn errors() {
        let inf = f32::NEG_INFINITY;
        assert!(matches!(logprobs(&[0.0], 1, 0), Err(EngineError::TokenOutOfRange { id: 1, vocab: 1 })));
        assert!(matches!(logprobs(&[0.0, f32::NAN], 0, 0), Err(EngineError::BadLogit { id: 1, .. })));
        assert!(matches!(logprobs(&[inf, inf], 0, 0), Err(EngineError::NoCandidate)));
    }
}
