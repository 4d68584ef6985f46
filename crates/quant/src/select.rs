//! The k-th smallest weight score without sorting or copying the weights: two histogram passes over the key bits.

use rayon::prelude::*;

use crate::common::abs_bits;

/// Values that one task counts, at least.
const TASK: usize = 1 << 20;

/// A score and how many scores lie above it.
pub(crate) struct Ranked {
    /// Bits of the score (non-negative floats order like their bits).
    pub key: u32,
    /// How many keys are larger.
    pub above: usize,
}

/// Score of weight `v` in a column of weight `w`: bits of |v| * w, or of |v| without column weights.
#[inline(always)]
pub(crate) fn score_bits(v: f32, w: Option<f32>) -> u32 {
    match w {
        None => abs_bits(v),
        Some(w) => (v.abs() * w).to_bits(),
    }
}

/// The key of rank `rank` (0 = smallest) among all scores; `rank < values.len()`, column weights are not negative.
pub(crate) fn key_of_rank(values: &[f32], cols: usize, weights: Option<&[f32]>, rank: usize) -> Ranked {
    // Keys have no sign bit: the upper half has 15 bits.
    let upper = histogram(values, cols, weights, 1 << 15, |key| Some(key >> 16));
    let (high, rank) = bin_of_rank(&upper, rank);
    let lower = histogram(values, cols, weights, 1 << 16, |key| (key >> 16 == high).then_some(key & 0xFFFF));
    let (low, _) = bin_of_rank(&lower, rank);
    let above =
        upper.iter().skip(high as usize + 1).sum::<usize>() + lower.iter().skip(low as usize + 1).sum::<usize>();
    Ranked { key: high << 16 | low, above }
}

/// The bin that holds the given rank and the rank inside it.
fn bin_of_rank(counts: &[usize], mut rank: usize) -> (u32, usize) {
    for (bin, count) in counts.iter().enumerate() {
        if rank < *count {
            return (bin as u32, rank);
        }
        rank -= count;
    }
    (0, 0)
}

fn histogram(
    values: &[f32],
    cols: usize,
    weights: Option<&[f32]>,
    bins: usize,
    bin: impl Fn(u32) -> Option<u32> + Sync,
) -> Vec<usize> {
    let rows_per_task = TASK.div_ceil(cols);
    values
        .par_chunks(rows_per_task * cols)
        .fold(
            || vec![0usize; bins],
            |mut counts, rows| {
                let mut add = |key| {
                    if let Some(slot) = bin(key).and_then(|bin| counts.get_mut(bin as usize)) {
                        *slot += 1;
                    }
                };
                match weights {
                    None => rows.iter().for_each(|v| add(score_bits(*v, None))),
                    Some(weights) => {
                        for row in rows.chunks_exact(cols) {
                            row.iter().zip(weights).for_each(|(v, w)| add(score_bits(*v, Some(*w))));
                        }
                    }
                }
                counts
            },
        )
        .reduce(
            || vec![0usize; bins],
            |mut a, b| {
                a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
                a
            },
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equals_a_sort() {
        let values: Vec<f32> =
            (0..4096u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 20) as f32 * 1e-3 - 2.0).collect();
        let weights: Vec<f32> = (0..64).map(|j| 0.5 + j as f32 / 64.0).collect();
        for weights in [None, Some(weights.as_slice())] {
            let mut keys: Vec<u32> =
                values.iter().enumerate().map(|(i, v)| score_bits(*v, weights.map(|w| w[i % 64]))).collect();
            keys.sort_unstable();
            for rank in [0, 1, 100, 2048, 4000, 4095] {
                let found = key_of_rank(&values, 64, weights, rank);
                assert_eq!(found.key, keys[rank]);
                assert_eq!(found.above, keys.iter().filter(|k| **k > keys[rank]).count());
            }
        }
    }
}
