//! q4_block and q4_tiled: 32 codes in 16 bytes, offset by 8, and an f16 scale per group.
//!
//! Bytes read per row: `cols / 32 * 18`. AVX2, instructions per 32 weights: load and widen, mask, shift; two
//! multiply-adds, sum, conversion, multiply-add of floats; one for the scale's place; an eighth of the work on eight
//! scales. Inputs have the even columns of a group first, as the codes come out.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

use cortiq_quant::{Q4Block, Q4Tiled, f16_to_f32};

use super::packed::Job;
use super::packed::groups::{Groups, Input, Loops};
use super::packed::tile::{Rows, products};
use super::tile::LANES;

/// Unpacks groups of four bits.
pub(super) trait Nibbles: Groups {
    /// Codes in the low halves of all bytes, the even columns, then those in the high halves.
    fn nibbles(source: &[u8; 16]) -> Self::Codes;
}

/// Codes and scales apart.
struct Block<'a> {
    codes: &'a [[u8; 16]],
    scales: &'a [[u8; 2]],
    groups: usize,
}

impl<V: Nibbles> Rows<V> for Block<'_> {
    /// First group.
    type Row = usize;
    type At = *const [u8; 16];
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
        let end = (index + 1) * self.groups;
        assert!(end <= self.codes.len() && end <= self.scales.len(), "a row of the matrix");
        index * self.groups
    }

    #[inline(always)]
    unsafe fn at(&self, row: usize, group: usize) -> Self::At {
        // SAFETY: `row` was checked when it was made, `group` is the caller's promise.
        unsafe { self.codes.as_ptr().add(row + group) }
    }

    #[inline(always)]
    unsafe fn codes(at: Self::At, k: usize) -> V::Codes {
        // SAFETY: the row has the group by the caller's promise.
        V::nibbles(unsafe { &*at.add(k) })
    }

    #[inline(always)]
    unsafe fn dot<I: Input<V>>(at: Self::At, k: usize, x: &I::Group) -> V {
        // SAFETY: the row has the group by the caller's promise.
        let codes = unsafe { &*at.add(k) };
        I::dot_nibbles(codes, V::nibbles(codes), x)
    }

    #[inline(always)]
    unsafe fn scales(&self, row: usize, group: usize) -> V {
        V::prefetch(self.codes.as_ptr().wrapping_add(row + group + AHEAD).cast());
        V::prefetch(self.codes.as_ptr().wrapping_add(row + group + AHEAD + 4).cast());
        halves_of::<V>(&self.scales[row..row + self.groups], self.scales, row, group)
    }

    #[inline(always)]
    fn row_scale(&self, _row: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    fn offset(&self, _row: usize) -> f32 {
        8.0
    }
}

/// See [`Rows::TOGETHER`].
const TOGETHER: usize = 4;

/// Groups ahead of their use that memory is asked for.
const AHEAD: usize = 64;

/// Eight scales from `group` of a row on, 0 after the row; `all` has those of later rows, which are masked out.
#[inline(always)]
pub(super) fn halves_of<V: Groups>(row: &[[u8; 2]], all: &[[u8; 2]], start: usize, group: usize) -> V {
    let left = row.len() - group;
    match all[start + group..].first_chunk::<LANES>() {
        Some(scales) if left >= LANES => V::halves(scales),
        Some(scales) => V::halves(scales).first(left),
        None => {
            let mut scales = [[0; 2]; LANES];
            scales[..left].copy_from_slice(&row[group..]);
            V::halves(&scales)
        }
    }
}

/// Eight scales at the front of tiles of `N` bytes, 0 after the last tile of the row.
#[inline(always)]
pub(super) fn tile_scales<V: Groups, const N: usize>(row: &[[u8; N]], group: usize) -> V {
    match row[group..].first_chunk::<LANES>() {
        Some(tiles) => V::tile_halves(tiles),
        None => {
            let mut scales = [0.0; LANES];
            for (scale, tile) in scales.iter_mut().zip(&row[group..]) {
                *scale = f16_to_f32(u16::from_le_bytes([tile[0], tile[1]]));
            }
            V::load(&scales)
        }
    }
}

/// Tiles of a scale and its codes.
struct Tiles<'a> {
    tiles: &'a [[u8; 18]],
    groups: usize,
}

impl<V: Nibbles> Rows<V> for Tiles<'_> {
    /// First tile.
    type Row = usize;
    type At = *const [u8; 18];
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
        V::nibbles(codes)
    }

    #[inline(always)]
    unsafe fn dot<I: Input<V>>(at: Self::At, k: usize, x: &I::Group) -> V {
        // SAFETY: the row has the group by the caller's promise.
        let [_, _, codes @ ..] = unsafe { &*at.add(k) };
        I::dot_nibbles(codes, V::nibbles(codes), x)
    }

    #[inline(always)]
    unsafe fn scales(&self, row: usize, group: usize) -> V {
        let ahead = self.tiles.as_ptr().wrapping_add(row + group + AHEAD).cast::<u8>();
        V::prefetch(ahead);
        V::prefetch(ahead.wrapping_add(64));
        tile_scales::<V, 18>(&self.tiles[row..row + self.groups], group)
    }

    #[inline(always)]
    fn row_scale(&self, _row: usize) -> f32 {
        1.0
    }

    #[inline(always)]
    fn offset(&self, _row: usize) -> f32 {
        8.0
    }
}

/// q4_block.
pub(super) fn block<V: Loops + Nibbles>(view: &Q4Block<'_>, job: Job<'_>) {
    let matrix = Block { codes: view.codes(), scales: view.scales(), groups: view.cols() / cortiq_quant::GROUP };
    products::<V, _>(&matrix, job);
}

/// q4_tiled.
pub(super) fn tiled<V: Loops + Nibbles>(view: &Q4Tiled<'_>, job: Job<'_>) {
    let matrix = Tiles { tiles: view.tiles(), groups: view.cols() / cortiq_quant::GROUP };
    products::<V, _>(&matrix, job);
}
