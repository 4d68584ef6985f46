//! q4_block: `[16 nibble bytes] * groups, [f16 s] * groups` over the flattened matrix (docs/cmf-format.md §7.4).

use rayon::prelude::*;

use crate::common::{GROUP, check_length, decode_run, element_count, f16_at, run_start, shape_methods};
use crate::error::QuantError;
use crate::fit::Fit;
use crate::nibbles::{CODE_BYTES, decode_group, encode_group};

const NAME: &str = "q4_block";

/// Largest magnitude whose group scale is finite: 7 times the largest f16.
pub(crate) const MAX_ABS: f32 = 65504.0 * 7.0;

/// Groups that one parallel task encodes.
pub(crate) const TASK_GROUPS: usize = 256;

/// Checked q4_block matrix. Groups run over the flattened matrix; they are groups of a row where `cols % 32 == 0`.
#[derive(Debug, Clone, Copy)]
pub struct Q4Block<'a> {
    codes: &'a [[u8; CODE_BYTES]],
    scales: &'a [[u8; 2]],
    rows: usize,
    cols: usize,
}

impl<'a> Q4Block<'a> {
    shape_methods!();

    /// Checks the length of `payload` for a `[rows, cols]` matrix.
    ///
    /// # Errors
    /// [`QuantError::Empty`], [`QuantError::TooLarge`], [`QuantError::PayloadLength`].
    pub fn new(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        let groups = element_count(NAME, rows, cols)?.div_ceil(GROUP);
        check_length(NAME, payload, rows, cols, groups * (CODE_BYTES + 2))?;
        let (codes, scales) = payload.split_at(groups * CODE_BYTES);
        Ok(Self { codes: codes.as_chunks().0, scales: scales.as_chunks().0, rows, cols })
    }

    /// Codes of each group of the flattened matrix.
    pub fn codes(&self) -> &'a [[u8; CODE_BYTES]] {
        self.codes
    }

    /// Scale of each group, f16 little-endian.
    pub fn scales(&self) -> &'a [[u8; 2]] {
        self.scales
    }

    /// Whether no group crosses a row border.
    pub fn rows_are_whole_groups(&self) -> bool {
        self.cols.is_multiple_of(GROUP)
    }

    /// Decodes `out.len()` elements of a row from column `32 * first_group` on.
    ///
    /// # Panics
    /// Like slice indexing: when the run is not inside the row.
    pub fn decode_groups(&self, row: usize, first_group: usize, out: &mut [f32]) {
        let start = run_start(self.rows, self.cols, row, first_group, out.len());
        decode_run(start, out, |group, out| {
            decode_group(&self.codes[group], f16_at(self.scales[group]), out);
        });
    }
}

/// Encodes; the caller has checked shape and range.
pub(crate) fn encode(values: &[f32], fit: Fit) -> Result<Vec<u8>, QuantError> {
    let groups = values.len().div_ceil(GROUP);
    let mut out = vec![0; groups * (CODE_BYTES + 2)];
    let (codes, scales) = out.split_at_mut(groups * CODE_BYTES);
    let codes = codes.as_chunks_mut::<CODE_BYTES>().0;
    let scales = scales.as_chunks_mut::<2>().0;
    codes
        .par_chunks_mut(TASK_GROUPS)
        .zip(scales.par_chunks_mut(TASK_GROUPS))
        .zip(values.par_chunks(TASK_GROUPS * GROUP))
        .for_each(|((codes, scales), values)| {
            for ((codes, stored), values) in codes.iter_mut().zip(scales).zip(values.chunks(GROUP)) {
                *stored = encode_group(values, fit, codes).to_le_bytes();
            }
        });
    Ok(out)
}
