//! q8_2f: `[i8 q: rows*cols][f16 s: rows][f16 c: cols]`, w = q * s[row] * c[col] (docs/cmf-format.md §7.3).

use rayon::prelude::*;

use crate::common::{check_length, element_count, f16_at, round_clamp, run_start, scale, shape_methods};
use crate::error::QuantError;

const NAME: &str = "q8_2f";

/// Largest magnitude for which every column scale (a root mean square) is finite in f16.
pub(crate) const MAX_ABS: f32 = 65504.0;

/// Columns that one task sums; a row's part of them is two cache lines or more.
const COLUMN_BLOCK: usize = 128;

/// Checked q8_2f matrix.
#[derive(Debug, Clone, Copy)]
pub struct Q8_2f<'a> {
    codes: &'a [i8],
    row_scales: &'a [[u8; 2]],
    col_scales: &'a [[u8; 2]],
    rows: usize,
    cols: usize,
}

impl<'a> Q8_2f<'a> {
    shape_methods!();

    /// Checks the length of `payload` for a `[rows, cols]` matrix.
    ///
    /// # Errors
    /// [`QuantError::Empty`], [`QuantError::TooLarge`], [`QuantError::PayloadLength`].
    pub fn new(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        let n = element_count(NAME, rows, cols)?;
        check_length(NAME, payload, rows, cols, n + 2 * rows + 2 * cols)?;
        let (codes, rest) = payload.split_at(n);
        let (row_scales, col_scales) = rest.split_at(2 * rows);
        Ok(Self {
            codes: bytemuck::cast_slice(codes),
            row_scales: row_scales.as_chunks().0,
            col_scales: col_scales.as_chunks().0,
            rows,
            cols,
        })
    }

    /// All codes `[rows, cols]`.
    pub fn codes(&self) -> &'a [i8] {
        self.codes
    }

    /// Row scales, f16 little-endian, `[rows]`.
    pub fn row_scales(&self) -> &'a [[u8; 2]] {
        self.row_scales
    }

    /// Column scales, f16 little-endian, `[cols]`.
    pub fn col_scales(&self) -> &'a [[u8; 2]] {
        self.col_scales
    }

    /// Decodes `out.len()` elements of a row from column `32 * first_group` on.
    ///
    /// # Panics
    /// Like slice indexing: when the run is not inside the row.
    pub fn decode_groups(&self, row: usize, first_group: usize, out: &mut [f32]) {
        let start = run_start(self.rows, self.cols, row, first_group, out.len());
        let s = f16_at(self.row_scales[row]);
        let col_scales = &self.col_scales[start - row * self.cols..];
        for ((out, q), c) in out.iter_mut().zip(&self.codes[start..]).zip(col_scales) {
            *out = f32::from(*q) * s * f16_at(*c);
        }
    }
}

/// Encodes; the caller has checked shape and range.
pub(crate) fn encode(values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError> {
    let n = values.len();
    let mut out = vec![0; n + 2 * rows + 2 * cols];
    let (codes, rest) = out.split_at_mut(n);
    let (row_scales, col_scales) = rest.split_at_mut(2 * rows);
    let col_scales = col_scales.as_chunks_mut::<2>().0;
    let c = column_scales(values, rows, cols, col_scales);
    codes.par_chunks_mut(cols).zip(row_scales.as_chunks_mut::<2>().0).zip(values.par_chunks(cols)).for_each(
        |((codes, stored), values)| {
            let top = values.iter().zip(&c).fold(0.0, |m: f32, (v, c)| {
                let x = (v / c).abs();
                if x > m { x } else { m }
            });
            let (bits, s) = scale(top.max(1e-12) / 127.0);
            *stored = bits.to_le_bytes();
            for ((code, v), c) in codes.iter_mut().zip(values).zip(&c) {
                *code = round_clamp(v / c / s, -127.0, 127.0) as u8;
            }
        },
    );
    Ok(out)
}

/// Stores and returns the column scales: root mean squares, summed in f64 in row order.
fn column_scales(values: &[f32], rows: usize, cols: usize, stored: &mut [[u8; 2]]) -> Vec<f32> {
    let mut c = vec![0.0; cols];
    c.par_chunks_mut(COLUMN_BLOCK).zip(stored.par_chunks_mut(COLUMN_BLOCK)).enumerate().for_each(
        |(block, (c, stored))| {
            let first = block * COLUMN_BLOCK;
            let mut sums = [0.0f64; COLUMN_BLOCK];
            for row in values.chunks_exact(cols) {
                for (sum, v) in sums.iter_mut().zip(&row[first..first + c.len()]) {
                    let v = f64::from(*v);
                    *sum += v * v;
                }
            }
            for ((c, stored), sum) in c.iter_mut().zip(stored).zip(&sums) {
                let (bits, value) = scale((sum / rows as f64).sqrt().max(1e-12) as f32);
                *stored = bits.to_le_bytes();
                *c = value;
            }
        },
    );
    c
}
