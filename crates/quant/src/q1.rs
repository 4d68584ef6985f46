//! q1: tiles of `[f16 s][4 sign bytes]`, bit set = +s, clear = -s (docs/cmf-format.md §7.8).

use rayon::prelude::*;

use crate::common::{GROUP, check_length, decode_run, element_count, f16_at, run_start, scale, shape_methods};
use crate::error::QuantError;

const NAME: &str = "q1";

/// Bytes of a tile: scale and signs.
pub(crate) const TILE: usize = 6;

/// Largest magnitude whose group mean is finite in f16.
pub(crate) const MAX_ABS: f32 = 65504.0;

/// Bit of element k in the little-endian sign word.
const BIT: [u32; GROUP] = {
    let mut bits = [0; GROUP];
    let mut k = 0;
    while k < GROUP {
        bits[k] = 1 << k;
        k += 1;
    }
    bits
};

/// Checked q1 matrix. Writers use it only where `cols % 32 == 0`; other widths are read as one flat sequence.
#[derive(Debug, Clone, Copy)]
pub struct Q1<'a> {
    tiles: &'a [[u8; TILE]],
    rows: usize,
    cols: usize,
}

impl<'a> Q1<'a> {
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

    /// Tiles of the flattened matrix: two bytes f16 scale, four bytes signs (bit k of the LE word is element k).
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
        decode_run(start, out, |group, out| decode_tile(&self.tiles[group], out));
    }
}

#[inline(always)]
fn decode_tile(tile: &[u8; TILE], out: &mut [f32; GROUP]) {
    let [s0, s1, signs @ ..] = *tile;
    let s = f16_at([s0, s1]).to_bits();
    let word = u32::from_le_bytes(signs);
    for (out, bit) in out.iter_mut().zip(BIT) {
        // A compare against a constant vector and an xor of the sign: no variable shift.
        let flip = if word & bit == 0 { 0x8000_0000 } else { 0 };
        *out = f32::from_bits(s ^ flip);
    }
}

/// Encodes `q1`, or `q1p` with `carry`; the caller has checked shape and range.
pub(crate) fn encode(values: &[f32], _rows: usize, cols: usize, carry: bool) -> Result<Vec<u8>, QuantError> {
    let mut out = vec![0; values.len() / GROUP * TILE];
    out.as_chunks_mut::<TILE>().0.par_chunks_mut(cols / GROUP).zip(values.par_chunks(cols)).for_each(
        |(tiles, values)| {
            if carry {
                encode_row_carry(values, tiles, |_| false);
            } else {
                encode_row(values, tiles);
            }
        },
    );
    Ok(out)
}

fn encode_row(values: &[f32], tiles: &mut [[u8; TILE]]) {
    for (group, tile) in values.as_chunks::<GROUP>().0.iter().zip(tiles) {
        let mean = group.iter().fold(0.0, |sum: f32, v| sum + v.abs()) / GROUP as f32;
        let signs = group.iter().zip(BIT).fold(0, |word, (v, bit)| if *v >= 0.0 { word | bit } else { word });
        store(tile, scale(mean).0, signs);
    }
}

/// Encodes one row with the running error carry of §7.8.
///
/// Values for which `kept` holds (the outliers of §7.9) count neither for the scale nor for the carry and store
/// their own sign.
pub(crate) fn encode_row_carry(values: &[f32], tiles: &mut [[u8; TILE]], kept: impl Fn(f32) -> bool) {
    let mut carry = 0.0f32;
    for (group, tile) in values.as_chunks::<GROUP>().0.iter().zip(tiles) {
        let (sum, count) =
            group.iter().filter(|v| !kept(**v)).fold((0.0f32, 0u32), |(sum, count), v| (sum + v.abs(), count + 1));
        let (bits, s) = scale(if count == 0 { 0.0 } else { sum / count as f32 });
        let mut signs = 0;
        for (v, bit) in group.iter().zip(BIT) {
            let positive = if kept(*v) {
                *v >= 0.0
            } else {
                let t = v + carry;
                carry = if t >= 0.0 { t - s } else { t + s };
                t >= 0.0
            };
            if positive {
                signs |= bit;
            }
        }
        store(tile, bits, signs);
    }
}

fn store(tile: &mut [u8; TILE], scale_bits: u16, signs: u32) {
    let [s0, s1] = scale_bits.to_le_bytes();
    let [b0, b1, b2, b3] = signs.to_le_bytes();
    *tile = [s0, s1, b0, b1, b2, b3];
}
