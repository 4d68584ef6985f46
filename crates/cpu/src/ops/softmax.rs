//! Softmax and sigmoid.

/// `scores[j] = exp(scores[j] - max) / sum`, the sum in f64.
pub(crate) fn softmax(scores: &mut [f32]) {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut sum = 0.0f64;
    for s in scores.iter_mut() {
        *s = (*s - max).exp();
        sum += f64::from(*s);
    }
    let inverse = (1.0 / sum) as f32;
    scores.iter_mut().for_each(|s| *s *= inverse);
}

/// `1 / (1 + e^-x)`.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}
