//! q8_row: `[i8 q: rows*cols][f16 s: rows]`, w = q * s[row] (docs/cmf-format.md §7.2).

use rayon::prelude::*;

use crate::common::{abs_max, check_length, element_count, f16_at, round_clamp, run_start, scale, shape_methods};
use crate::error::QuantError;

const NAME: &str = "q8_row";

/// Largest magnitude whose row scale is finite: 127 times the largest f16.
pub(crate) const MAX_ABS: f32 = 65504.0 * 127.0;

/// Checked q8_row matrix.
#[derive(Debug, Clone, Copy)]
pub struct Q8Row<'a> {
    codes: &'a [i8],
    scales: &'a [[u8; 2]],
    rows: usize,
    cols: usize,
}

impl<'a> Q8Row<'a> {
    shape_methods!();

    /// Checks the length of `payload` for a `[rows, cols]` matrix.
    ///
    /// # Errors
    /// [`QuantError::Empty`], [`QuantError::TooLarge`], [`QuantError::PayloadLength`].
    pub fn new(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        let n = element_count(NAME, rows, cols)?;
        check_length(NAME, payload, rows, cols, n + 2 * rows)?;
        let (codes, scales) = payload.split_at(n);
        Ok(Self { codes: bytemuck::cast_slice(codes), scales: scales.as_chunks().0, rows, cols })
    }

    /// All codes `[rows, cols]`.
    pub fn codes(&self) -> &'a [i8] {
        self.codes
    }

    /// Row scales, f16 little-endian, `[rows]`.
    pub fn scales(&self) -> &'a [[u8; 2]] {
        self.scales
    }

    /// Decodes `out.len()` elements of a row from column `32 * first_group` on.
    ///
    /// # Panics
    /// Like slice indexing: when the run is not inside the row.
    pub fn decode_groups(&self, row: usize, first_group: usize, out: &mut [f32]) {
        let start = run_start(self.rows, self.cols, row, first_group, out.len());
        let s = f16_at(self.scales[row]);
        for (out, q) in out.iter_mut().zip(&self.codes[start..]) {
            *out = f32::from(*q) * s;
        }
    }
}

/// Encodes; the caller has checked shape and range.
pub(crate) fn encode(values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError> {
    let n = values.len();
    let mut out = vec![0; n + 2 * rows];
    let (codes, scales) = out.split_at_mut(n);
    codes.par_chunks_mut(cols).zip(scales.as_chunks_mut::<2>().0).zip(values.par_chunks(cols)).for_each(
        |((codes, stored), values)| {
            let (bits, s) = scale(abs_max(values) / 127.0);
            *stored = bits.to_le_bytes();
            for (code, v) in codes.iter_mut().zip(values) {
                *code = round_clamp(v / s, -128.0, 127.0) as u8;
            }
        },
    );
    Ok(out)
}
