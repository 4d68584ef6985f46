//! The q1t encoder: ternary codes, an f16 overlay of the weights that matter most, and a scale correction by row
//! (docs/cmf-format.md §7.10).

use std::sync::Arc;

use rayon::prelude::*;

use crate::common::{GROUP, abs_bits, cut, scale};
use crate::error::QuantError;
use crate::float::f32_to_f16;
use crate::q1t::{DIGITS, ENTRY, NAME, POW3, TILE};
use crate::select::{key_of_rank, score_bits};

pub(crate) use crate::q1t::MAX_COLS;

/// Largest magnitude for which a scale stays finite in f16 after a row correction of at most 2.
pub(crate) const MAX_ABS: f32 = 65504.0 / 2.0;

/// Options of the q1t encoder.
#[derive(Debug, Clone, PartialEq)]
pub struct Q1tOptions {
    /// Root mean square of each input channel from calibration, `[cols]`, finite and not negative. `None` = all 1.
    pub input_rms: Option<Arc<[f32]>>,
    /// Fraction of weights kept as f16 outliers, 0..=1.
    pub keep: f32,
    /// Whether the scales of a row are corrected to the least weighted error (step 3 of §7.10).
    pub row_correction: bool,
    /// Whether whole columns are kept instead of single weights.
    pub column_mask: bool,
}

impl Default for Q1tOptions {
    fn default() -> Self {
        Self { input_rms: None, keep: 0.01, row_correction: true, column_mask: false }
    }
}

impl Q1tOptions {
    fn check(&self, cols: usize) -> Result<(), QuantError> {
        let refuse = |option, what| Err(QuantError::Option { dtype: NAME, option, what });
        if !(0.0..=1.0).contains(&self.keep) {
            return refuse("keep", format!("{} is outside 0..=1", self.keep));
        }
        let Some(rms) = &self.input_rms else {
            return Ok(());
        };
        if rms.len() != cols {
            return refuse("input_rms", format!("{} values for {cols} columns", rms.len()));
        }
        match rms.iter().position(|r| !r.is_finite() || r.is_sign_negative()) {
            Some(col) => refuse("input_rms", format!("value {col} is {}, not finite and >= 0", rms[col])),
            None => Ok(()),
        }
    }
}

/// Which weights are outliers.
enum Overlay {
    /// Scores above `key`, and in each row the first `ties[row]` scores equal to it.
    Scores { key: u32, ties: Vec<usize> },
    /// Whole columns.
    Columns(Vec<bool>),
}

impl Overlay {
    /// Step 1 of §7.10. Among equal scores the lowest flat index wins, among equal columns the lowest column.
    fn choose(values: &[f32], rows: usize, cols: usize, options: &Q1tOptions) -> Self {
        let n = values.len();
        let budget = ((n as f64 * f64::from(options.keep)).round() as usize).min(n);
        let rms = options.input_rms.as_deref();
        if options.column_mask {
            return Self::Columns(best_columns(values, cols, rms, budget / rows));
        }
        if budget == 0 {
            return Self::Columns(vec![false; cols]);
        }
        let ranked = key_of_rank(values, cols, rms, n - budget);
        let mut left = budget - ranked.above;
        let equal: Vec<usize> =
            values.par_chunks(cols).map(|row| scores(row, rms).filter(|score| *score == ranked.key).count()).collect();
        let ties = equal
            .into_iter()
            .map(|count| {
                let taken = count.min(left);
                left -= taken;
                taken
            })
            .collect();
        Self::Scores { key: ranked.key, ties }
    }

    /// Marks the outliers of a row.
    fn mark(&self, row: usize, values: &[f32], rms: Option<&[f32]>, marks: &mut Vec<bool>) {
        marks.clear();
        match self {
            Self::Columns(columns) => marks.extend_from_slice(columns),
            Self::Scores { key, ties } => {
                let mut left = ties[row];
                marks.extend(scores(values, rms).map(|score| {
                    let tie = score == *key && left > 0;
                    left -= usize::from(tie);
                    tie || score > *key
                }));
            }
        }
    }

    /// Outliers of each row.
    fn counts(&self, values: &[f32], rows: usize, cols: usize, rms: Option<&[f32]>) -> Vec<usize> {
        match self {
            Self::Columns(columns) => vec![columns.iter().filter(|c| **c).count(); rows],
            Self::Scores { key, ties } => values
                .par_chunks(cols)
                .zip(ties)
                .map(|(row, ties)| scores(row, rms).filter(|score| score > key).count() + ties)
                .collect(),
        }
    }
}

/// Score bits of the weights of a row.
fn scores<'a>(row: &'a [f32], rms: Option<&'a [f32]>) -> impl Iterator<Item = u32> + 'a {
    row.iter().enumerate().map(move |(col, v)| score_bits(*v, rms.and_then(|rms| rms.get(col).copied())))
}

/// The `count` columns with the largest peak times r.
fn best_columns(values: &[f32], cols: usize, rms: Option<&[f32]>, count: usize) -> Vec<bool> {
    let rows_per_task = (1usize << 18).div_ceil(cols);
    let peaks = values
        .par_chunks(rows_per_task * cols)
        .map(|rows| {
            let mut peaks = vec![0u32; cols];
            for row in rows.chunks_exact(cols) {
                for (peak, v) in peaks.iter_mut().zip(row) {
                    *peak = (*peak).max(abs_bits(*v));
                }
            }
            peaks
        })
        .reduce(
            || vec![0; cols],
            |mut a, b| {
                a.iter_mut().zip(b).for_each(|(a, b)| *a = (*a).max(b));
                a
            },
        );
    let mut order: Vec<(u32, usize)> = peaks
        .iter()
        .enumerate()
        .map(|(col, peak)| (score_bits(f32::from_bits(*peak), rms.and_then(|rms| rms.get(col).copied())), col))
        .collect();
    order.sort_unstable_by_key(|(score, col)| (std::cmp::Reverse(*score), *col));
    let mut chosen = vec![false; cols];
    for (_, col) in order.into_iter().take(count) {
        chosen[col] = true;
    }
    chosen
}

/// Encodes; the caller has checked shape and range.
pub(crate) fn encode(values: &[f32], rows: usize, cols: usize, options: &Q1tOptions) -> Result<Vec<u8>, QuantError> {
    options.check(cols)?;
    let rms = options.input_rms.as_deref();
    let overlay = Overlay::choose(values, rows, cols, options);
    let counts = overlay.counts(values, rows, cols, rms);
    let total: usize = counts.iter().sum();
    if u32::try_from(total).is_err() {
        return Err(QuantError::TooLarge { dtype: NAME, rows, cols, what: "entry count is 32 bits" });
    }
    let base_len = values.len() / GROUP * TILE;
    let mut out = vec![0; base_len + 4 * (rows + 1) + ENTRY * total];
    let (base, rest) = out.split_at_mut(base_len);
    let (row_ptr, entries) = rest.split_at_mut(4 * (rows + 1));
    write_row_ptr(row_ptr, &counts);
    base.as_chunks_mut::<TILE>()
        .0
        .par_chunks_mut(cols / GROUP)
        .zip(cut(entries, counts.iter().map(|count| count * ENTRY)))
        .zip(values.par_chunks(cols))
        .enumerate()
        .for_each_init(Vec::new, |marks, (row, ((tiles, entries), values))| {
            overlay.mark(row, values, rms, marks);
            encode_base(values, marks, rms, options.row_correction, tiles);
            let outliers = values.iter().zip(marks.iter()).enumerate().filter(|(_, (_, mark))| **mark);
            for (entry, (col, (v, _))) in entries.as_chunks_mut::<ENTRY>().0.iter_mut().zip(outliers) {
                let [c0, c1] = (col as u16).to_le_bytes();
                let [v0, v1] = f32_to_f16(*v).to_le_bytes();
                *entry = [c0, c1, v0, v1];
            }
        });
    Ok(out)
}

/// Writes the running sums of `counts`, from 0; the caller has checked that they fit.
pub(crate) fn write_row_ptr(row_ptr: &mut [u8], counts: &[usize]) {
    let mut end = 0;
    for (entry, count) in row_ptr.as_chunks_mut::<4>().0.iter_mut().skip(1).zip(counts) {
        end += count;
        *entry = (end as u32).to_le_bytes();
    }
}

/// Steps 2 and 3 of §7.10 for one row.
fn encode_base(values: &[f32], marks: &[bool], rms: Option<&[f32]>, correct: bool, tiles: &mut [[u8; TILE]]) {
    let groups = values.as_chunks::<GROUP>().0.iter().zip(marks.as_chunks::<GROUP>().0);
    // Sums of q*w*d and q*q*d over the codes that are not 0.
    let (mut cross, mut square) = (0.0f64, 0.0f64);
    for (at, ((group, marks), tile)) in groups.zip(tiles.iter_mut()).enumerate() {
        let (sum, count) = group
            .iter()
            .zip(marks)
            .filter(|(_, mark)| !**mark)
            .fold((0.0f32, 0u32), |(sum, count), (v, _)| (sum + v.abs(), count + 1));
        let (bits, s) = scale(if count == 0 { 0.0 } else { sum / count as f32 });
        let [s0, s1, codes @ ..] = tile;
        [*s0, *s1] = bits.to_le_bytes();
        for (k, (v, mark)) in group.iter().zip(marks).enumerate() {
            let (digit, q) = match v / s {
                _ if *mark => continue,
                x if x >= 0.5 => (1, s),
                x if x <= -0.5 => (2, -s),
                _ => continue,
            };
            codes[k / DIGITS] += digit * POW3[k % DIGITS];
            let r = f64::from(rms.and_then(|rms| rms.get(at * GROUP + k).copied()).unwrap_or(1.0));
            let (q, w, d) = (f64::from(q), f64::from(*v), r * r);
            cross += q * w * d;
            square += q * q * d;
        }
    }
    if correct && square > 1e-20 {
        let alpha = (cross / square).clamp(0.5, 2.0) as f32;
        for [s0, s1, ..] in tiles {
            let s = crate::common::f16_at([*s0, *s1]) * alpha;
            [*s0, *s1] = f32_to_f16(s).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::q1t::Q1t;

    fn columns(bytes: &[u8], rows: usize, cols: usize) -> Vec<Vec<u16>> {
        let view = Q1t::new(bytes, rows, cols).unwrap();
        (0..rows).map(|row| view.row_entries(row).iter().map(|e| u16::from_le_bytes([e[0], e[1]])).collect()).collect()
    }

    #[test]
    fn the_budget_is_exact_and_ties_go_to_the_lowest_index() {
        let mut values = vec![0.5f32; 96];
        values[40] = 4.0;
        let options = Q1tOptions { keep: 4.0 / 96.0, ..Q1tOptions::default() };
        let bytes = encode(&values, 3, 32, &options).unwrap();
        assert_eq!(columns(&bytes, 3, 32), [vec![0, 1, 2], vec![8], vec![]]);
    }

    #[test]
    fn a_column_mask_takes_whole_columns() {
        let mut values = vec![0.1f32; 96];
        values[7] = 1.0;
        values[32 + 20] = -0.8;
        let mut rms = vec![1.0f32; 32];
        rms[20] = 2.0;
        let options =
            Q1tOptions { input_rms: Some(rms.into()), keep: 5.0 / 96.0, column_mask: true, ..Q1tOptions::default() };
        // Five weights are one whole column of three: 0.8 * 2 beats 1.0 * 1.
        let bytes = encode(&values, 3, 32, &options).unwrap();
        assert_eq!(columns(&bytes, 3, 32), vec![vec![20]; 3]);
    }

    #[test]
    fn bad_options_are_named() {
        let values = [0.5f32; 32];
        let with =
            |keep, rms: Option<Vec<f32>>| Q1tOptions { keep, input_rms: rms.map(Into::into), ..Q1tOptions::default() };
        for (options, name) in [
            (with(f32::NAN, None), "keep"),
            (with(-0.1, None), "keep"),
            (with(1.5, None), "keep"),
            (with(0.1, Some(vec![1.0; 31])), "input_rms"),
            (with(0.1, Some(vec![f32::NAN; 32])), "input_rms"),
            (with(0.1, Some(vec![-1.0; 32])), "input_rms"),
        ] {
            let error = encode(&values, 1, 32, &options).unwrap_err();
            assert!(matches!(error, QuantError::Option { option, .. } if option == name), "{error}");
        }
    }
}
