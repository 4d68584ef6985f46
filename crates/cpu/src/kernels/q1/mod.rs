//! q1 and q1s: a sign bit per weight and an f16 scale per group of 32; q1s has f16 outliers that take the place of some.
//!
//! Bytes read per row: `cols / 32 * 6`, and 6 per outlier. Signs become 0 and 2 in bytes, with an offset of 1. AVX2,
//! instructions per 32 weights: broadcast, shuffle, mask, compare, mask; two multiply-adds, conversion, multiply-add of
//! floats; two for the scale's place; an eighth of the work on eight scales.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

use cortiq_quant::{GROUP, Q1, Q1s, f16_to_f32};

use super::packed::groups::{Groups, Loops};
use super::packed::tile::{Rows, products};
use super::packed::{Job, add_outliers};
use super::q4::tile_scales;

/// Unpacks signs.
pub(super) trait Signs: Groups {
    /// 2 where the bit is set, else 0; bit `k` of the little-endian word is code `k`.
    fn signs(source: [u8; 4]) -> Self::Codes;
}

/// See [`Rows::TOGETHER`].
const TOGETHER: usize = 4;

/// Groups ahead of their use that memory is asked for.
const AHEAD: usize = 128;

/// Tiles of a scale and signs.
struct Tiles<'a> {
    tiles: &'a [[u8; 6]],
    groups: usize,
}

impl<V: Signs> Rows<V> for Tiles<'_> {
    /// First tile.
    type Row = usize;
    type At = *const [u8; 6];
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
        let [_, _, signs @ ..] = unsafe { &*at.add(k) };
        V::signs(*signs)
    }

    #[inline(always)]
    unsafe fn scales(&self, row: usize, group: usize) -> V {
        V::prefetch(self.tiles.as_ptr().wrapping_add(row + group + AHEAD).cast());
        tile_scales::<V, 6>(&self.tiles[row..row + self.groups], group)
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

impl<'a> Tiles<'a> {
    fn new(view: &Q1<'a>) -> Self {
        Self { tiles: view.tiles(), groups: view.cols() / GROUP }
    }

    /// The value at a flat index.
    fn value(&self, index: usize) -> f32 {
        let [s0, s1, signs @ ..] = self.tiles[index / GROUP];
        let scale = f16_to_f32(u16::from_le_bytes([s0, s1]));
        if u32::from_le_bytes(signs) >> (index % GROUP) & 1 == 1 { scale } else { -scale }
    }
}

/// q1.
pub(super) fn plain<V: Loops + Signs>(view: &Q1<'_>, job: Job<'_>) {
    products::<V, _>(&Tiles::new(view), job);
}

/// q1s.
pub(super) fn sparse<V: Loops + Signs>(view: &Q1s<'_>, job: Job<'_>) {
    let tiles = Tiles::new(&view.base());
    let Job { first_row, rows, x, out, scratch } = job;
    products::<V, _>(&tiles, Job { first_row, rows, x, out: &mut *out, scratch });
    let (cols, mut entries) = (view.cols(), view.entries());
    let index = |entry: &[u8; 6]| u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) as usize;
    // One search for all rows: the list is long, and a row has few entries.
    entries = &entries[entries.partition_point(|entry| index(entry) < first_row * cols)..];
    for r in 0..rows {
        let start = (first_row + r) * cols;
        let count = entries.iter().take_while(|entry| index(entry) < start + cols).count();
        let (own, rest) = entries.split_at(count);
        entries = rest;
        let changes = own.iter().map(|entry| {
            let index = index(entry);
            (index - start, f16_to_f32(u16::from_le_bytes([entry[4], entry[5]])) - tiles.value(index))
        });
        add_outliers(changes, x, out, (rows, r));
    }
}
