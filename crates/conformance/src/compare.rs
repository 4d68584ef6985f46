//! How far two sets of logits are apart.

/// Largest absolute difference of two rows.
pub fn max_abs_diff(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "rows of different length");
    a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f32::max)
}

/// Distance of an approximation from exact logits.
#[derive(Clone, Copy, Debug)]
pub struct Divergence {
    /// KL(exact ‖ approximate) of the softmax distributions, in nats.
    pub kl: f64,
    /// Cosine of the logit vectors.
    pub cosine: f64,
}

fn log_softmax(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
    logits.iter().map(|l| f64::from(l - max) - sum.ln()).collect()
}

/// Compares two rows of logits.
pub fn divergence(exact: &[f32], approximate: &[f32]) -> Divergence {
    assert_eq!(exact.len(), approximate.len(), "rows of different length");
    let (p, q) = (log_softmax(exact), log_softmax(approximate));
    let kl = p.iter().zip(&q).map(|(p, q)| p.exp() * (p - q)).sum();
    let dot = |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum() };
    let cosine = dot(exact, approximate) / (dot(exact, exact) * dot(approximate, approximate)).sqrt();
    Divergence { kl, cosine }
}
