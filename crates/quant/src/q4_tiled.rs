//! q4_tiled: `[f16 s][16 nibble bytes]` per group, values as in q4_block (docs/cmf-format.md §7.5).

use rayon::prelude::*;

use crate::common::{GROUP, check_length, decode_run, element_count, f16_at, run_start, shape_methods};
use crate::error::QuantError;
use crate::fit::Fit;
use crate::nibbles::{decode_group, encode_group};
use crate::q4_block::TASK_GROUPS;

const NAME: &str = "q4_tiled";

/// Bytes of a tile: scale and codes.
const TILE: usize = 18;

/// Checked q4_tiled matrix. Writers use it only where `cols % 32 == 0`; other widths are read as one flat sequence.
#[derive(Debug, Clone, Copy)]
pub struct Q4Tiled<'a> {
    tiles: &'a [[u8; TILE]],
    rows: usize,
    cols: usize,
}

impl<'a> Q4Tiled<'a> {
    shape_methods!();

    /// Checks the length of `payload` for a `[rows, cols]` matrix.
    ///
    /// # Errors
    /// [`QuantError::Empty`], [`QuantError::TooLarge`], [`QuantError::PayloadLength`].
    pub fn new(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        let groups = element_count(NAME, rows, cols)?.div_ceil(GROUP);
        check_length(NAME, payload, rows, cols, groups * TILE)?;
        let tiles = payload.as_chunks().0;
        Ok(Self { tiles, rows, cols })
    }

    /// Tiles of the flattened matrix: two bytes f16 scale, sixteen bytes codes.
    pub fn tiles(&self) -> &'a [[u8; TILE]] {
        self.tiles
    }

    /// Whether no tile crosses a row border.
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
            let [s0, s1, codes @ ..] = &self.tiles[group];
            decode_group(codes, f16_at([*s0, *s1]), out);
        });
    }
}

/// Encodes; the caller has checked shape and range.
pub(crate) fn encode(values: &[f32], fit: Fit) -> Result<Vec<u8>, QuantError> {
    let mut out = vec![0; values.len().div_ceil(GROUP) * TILE];
    out.as_chunks_mut::<TILE>().0.par_chunks_mut(TASK_GROUPS).zip(values.par_chunks(TASK_GROUPS * GROUP)).for_each(
        |(tiles, values)| {
            for (tile, values) in tiles.iter_mut().zip(values.chunks(GROUP)) {
                let [s0, s1, codes @ ..] = tile;
                [*s0, *s1] = encode_group(values, fit, codes).to_le_bytes();
            }
        },
    );
    Ok(out)
}
