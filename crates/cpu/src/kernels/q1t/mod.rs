//! q1t: ternary digits, five in a byte, an f16 scale per group of 32, and f16 outliers by row.
//!
//! Bytes read per row: `cols / 32 * 9`, 4 per outlier and 4 of the row table. A byte's digits come from a table of 2 KiB,
//! as -1, 0 and 1 plus an offset of 1. AVX2, instructions per 32 weights: seven loads of code bytes and seven of the
//! table, twelve shifts and ors, five moves to a vector; two multiply-adds, conversion, multiply-add of floats; two for
//! the scale's place; an eighth of the work on eight scales.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

use cortiq_quant::{GROUP, Q1t, f16_to_f32};

use super::packed::groups::{Groups, Loops};
use super::packed::tile::{self, Rows};
use super::packed::{Job, add_outliers};
use super::q4::tile_scales;

/// Digits of each byte, lowest first, as code plus 1: digit 0 is 0, 1 is 1, 2 is -1.
static DIGITS: [u64; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut rest, mut k) = (byte, 0);
        while k < 5 {
            table[byte] |= [1u64, 2, 0][rest % 3] << (8 * k);
            rest /= 3;
            k += 1;
        }
        byte += 1;
    }
    table
};

/// The codes of a tile, eight in a word.
#[inline(always)]
fn words(bytes: &[u8; 7]) -> [u64; 4] {
    let d = |k: usize| DIGITS[usize::from(bytes[k])];
    let (b1, b3, b4) = (d(1), d(3), d(4));
    [d(0) | b1 << 40, b1 >> 24 | d(2) << 16 | b3 << 56, b3 >> 8 | b4 << 32, b4 >> 32 | d(5) << 8 | d(6) << 48]
}

/// Puts codes together.
pub(super) trait Words: Groups {
    /// Codes of four words, little-endian.
    fn from_words(words: [u64; 4]) -> Self::Codes;
}

/// See [`Rows::TOGETHER`].
const TOGETHER: usize = 4;

/// Groups ahead of their use that memory is asked for.
const AHEAD: usize = 96;

struct Tiles<'a> {
    tiles: &'a [[u8; 9]],
    groups: usize,
}

impl<V: Words> Rows<V> for Tiles<'_> {
    /// First tile.
    type Row = usize;
    type At = *const [u8; 9];
    const SIGNED: bool = false;
    const SHIFTED: bool = true;
    const GROUPED: bool = true;
    const PACKED: bool = true;
    const TOGETHER: usize = TOGETHER;

    #[inline(always)]
    fn groups(&self) -> usize {
        self.groups
    }

    #[inline(always)]
    fn row(&self, index: usize) -> usize {
        assert!((index + 1) * self.groups <= self.tiles.len(), "a row of the matrix");
        index * self.groups
    }

    #[inline(always)]
    unsafe fn at(&self, row: usize, group: usize) -> Self::At {
        // SAFETY: `row` was checked when it was made, `group` is the caller's promise.
        unsafe { self.tiles.as_ptr().add(row + group) }
    }

    #[inline(always)]
    unsafe fn codes(at: Self::At, k: usize) -> V::Codes {
        // SAFETY: the row has the group by the caller's promise.
        let [_, _, codes @ ..] = unsafe { &*at.add(k) };
        V::from_words(words(codes))
    }

    #[inline(always)]
    unsafe fn scales(&self, row: usize, group: usize) -> V {
        V::prefetch(self.tiles.as_ptr().wrapping_add(row + group + AHEAD).cast());
        tile_scales::<V, 9>(&self.tiles[row..row + self.groups], group)
    }

    #[inline(always)]
    fn row_scale(&self, _row: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    fn offset(&self, _row: usize) -> f32 {
        1.0
    }
}

/// q1t.
pub(super) fn products<V: Loops + Words>(view: &Q1t<'_>, job: Job<'_>) {
    let Job { first_row, rows, x, out, scratch } = job;
    let tiles = Tiles { tiles: view.tiles(), groups: view.cols() / GROUP };
    tile::products::<V, _>(&tiles, Job { first_row, rows, x, out: &mut *out, scratch });
    for r in 0..rows {
        let values = view.row_entries(first_row + r).iter().map(|[c0, c1, v0, v1]| {
            (usize::from(u16::from_le_bytes([*c0, *c1])), f16_to_f32(u16::from_le_bytes([*v0, *v1])))
        });
        add_outliers(values, x, out, (rows, r));
    }
}
