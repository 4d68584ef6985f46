//! Choice of a group's scale in the dtypes that have one scale and evenly spaced codes per 32 values.

use crate::common::{GROUP, MIN_SCALE, abs_max, round_clamp, scale};
use crate::float::{f16_to_f32, f32_to_f16};

/// How the scale of a group is chosen. Any reader decodes both alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fit {
    /// From the largest magnitude alone: the bytes that docs/cmf-format.md §7 prescribes.
    #[default]
    Peak,
    /// The scale, of either sign, with the least squared error among some candidates around that one.
    LeastSquares,
}

/// Candidates put the group's extreme value at these places between the last code (1) and beyond or before it.
const PLACES: [f32; 13] = [0.82, 0.86, 0.9, 0.94, 0.97, 1.0, 1.03, 1.06, 1.1, 1.14, 1.18, 1.22, 1.26];

impl Fit {
    /// Scale of a group whose codes are `lo..=hi` (`lo < 0 < hi`): f16 bits and value. `peak_code` is the code that the
    /// largest magnitude gets under [`Fit::Peak`].
    pub(crate) fn group_scale(self, group: &[f32; GROUP], lo: f32, hi: f32, peak_code: f32) -> (u16, f32) {
        let start = scale(abs_max(group) / peak_code);
        match self {
            Self::Peak => start,
            Self::LeastSquares => least_squares(group, lo, hi, start),
        }
    }
}

/// The best candidate. Each is refined once: with the codes that it gives, the optimal scale is a quotient of sums.
fn least_squares(group: &[f32; GROUP], lo: f32, hi: f32, start: (u16, f32)) -> (u16, f32) {
    let extreme = group.iter().copied().fold(0.0f32, |a, b| if b.abs() > a.abs() { b } else { a });
    let (mut best, mut least) = (start, error(group, start.1, lo, hi).0);
    for place in PLACES {
        for code in [lo, hi] {
            let mut raw = extreme / (code * place);
            for _ in 0..2 {
                let value = f16_to_f32(f32_to_f16(raw));
                if value.abs() < MIN_SCALE || !value.is_finite() {
                    break;
                }
                let (squares, optimum) = error(group, value, lo, hi);
                if squares < least {
                    (best, least) = ((f32_to_f16(value), value), squares);
                }
                raw = optimum;
            }
        }
    }
    best
}

/// Squared error of a scale, and the scale that would be best for the codes it gives.
fn error(group: &[f32; GROUP], s: f32, lo: f32, hi: f32) -> (f32, f32) {
    let inverse = 1.0 / s;
    let (mut squares, mut cross, mut codes) = (0.0f32, 0.0f32, 0.0f32);
    for v in group {
        let q = round_clamp(v * inverse, lo, hi) as f32;
        let d = v - q * s;
        squares += d * d;
        cross += v * q;
        codes += q * q;
    }
    (squares, if codes > 0.0 { cross / codes } else { s })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encoding, decode, encode, encode_fitted};

    fn values(n: usize) -> Vec<f32> {
        // Heavy tails, as weights have.
        (0..n)
            .map(|i| {
                let x = ((i * 2_654_435_761) % 10_007) as f32 / 5_003.5 - 1.0;
                x * x * x * 0.3
            })
            .collect()
    }

    fn squared_error(enc: &Encoding, fit: Fit, values: &[f32], cols: usize) -> f64 {
        let payload = encode_fitted(enc, fit, values, values.len() / cols, cols).unwrap();
        let decoded = decode(enc.dtype(), &payload, values.len() / cols, cols).unwrap();
        values.iter().zip(decoded).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    }

    #[test]
    fn least_squares_is_better_in_every_group() {
        let all = values(64 * 32);
        for enc in [Encoding::Q4Block, Encoding::Q4Tiled, Encoding::Vbit { mean_milli_bits: 4250 }] {
            for group in all.chunks(32) {
                let (peak, fitted) =
                    (squared_error(&enc, Fit::Peak, group, 32), squared_error(&enc, Fit::LeastSquares, group, 32));
                assert!(fitted <= peak * 1.000_01, "{enc:?}: {fitted} > {peak}");
            }
            let gain = squared_error(&enc, Fit::LeastSquares, &all, 64) / squared_error(&enc, Fit::Peak, &all, 64);
            assert!(gain < 0.9, "{enc:?}: {gain}");
        }
    }

    #[test]
    fn the_extreme_value_may_take_the_lowest_code() {
        // -8 and 7 steps of 0.5: exact only with a scale of 0.5, which the peak rule (8 * 0.5 / 7) misses.
        let mut group = [0.0; 32];
        (group[0], group[1], group[2]) = (-4.0, 3.5, 0.5);
        assert_eq!(squared_error(&Encoding::Q4Block, Fit::LeastSquares, &group, 32), 0.0);
        group.iter_mut().for_each(|v| *v = -*v);
        assert_eq!(squared_error(&Encoding::Q4Block, Fit::LeastSquares, &group, 32), 0.0, "a negative scale");
    }

    #[test]
    fn zeros_and_tiny_groups_keep_the_least_scale() {
        for group in [[0.0f32; 32], [1e-7; 32]] {
            let peak = encode(&Encoding::Q4Block, &group, 1, 32).unwrap();
            assert_eq!(encode_fitted(&Encoding::Q4Block, Fit::LeastSquares, &group, 1, 32).unwrap(), peak);
        }
    }
}
