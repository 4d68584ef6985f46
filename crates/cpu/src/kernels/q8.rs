//! q8_row and q8_2f: a byte per weight, a scale per row; the column scales of q8_2f are in the quantised input.
//!
//! Bytes read per row: `cols` and 2. AVX2, instructions per 32 weights. Inputs of 8 bits: load, magnitude, sign of the
//! input, two multiply-adds, conversion, broadcast of the scale, multiply-add of floats; 8. Of 16 bits: two loads that
//! widen, two multiply-adds, a sum, and the last three; 8.

use cortiq_quant::{GROUP, Q8_2f, Q8Row, f16_to_f32};

use super::packed::Job;
use super::packed::groups::{Groups, Loops};
use super::packed::tile::{Rows, products};

/// See [`Rows::TOGETHER`].
const TOGETHER: usize = 1;

/// How far ahead of its use a row's memory is asked for.
const AHEAD: usize = 1024;

/// Codes and row scales.
struct Bytes<'a> {
    codes: &'a [[u8; GROUP]],
    scales: &'a [[u8; 2]],
    groups: usize,
}

impl<'a> Bytes<'a> {
    fn new(codes: &'a [i8], scales: &'a [[u8; 2]], cols: usize) -> Self {
        let codes = bytemuck::cast_slice::<i8, u8>(codes).as_chunks().0;
        assert!(codes.len() == scales.len() * (cols / GROUP), "rows of whole groups");
        Self { codes, scales, groups: cols / GROUP }
    }
}

impl<V: Groups> Rows<V> for Bytes<'_> {
    type Row = usize;
    type At = *const [u8; GROUP];
    const SIGNED: bool = true;
    const SHIFTED: bool = false;
    const GROUPED: bool = false;
    const PACKED: bool = false;
    const TOGETHER: usize = TOGETHER;

    #[inline(always)]
    fn groups(&self) -> usize {
        self.groups
    }

    #[inline(always)]
    fn row(&self, index: usize) -> usize {
        assert!(index < self.scales.len(), "a row of the matrix");
        index
    }

    #[inline(always)]
    unsafe fn at(&self, row: usize, group: usize) -> Self::At {
        // SAFETY: `row` was checked when it was made, `group` is the caller's promise.
        unsafe { self.codes.as_ptr().add(row * self.groups + group) }
    }

    #[inline(always)]
    unsafe fn codes(at: Self::At, k: usize) -> V::Codes {
        if k.is_multiple_of(2) {
            V::prefetch(at.cast::<u8>().wrapping_add(k * GROUP + AHEAD));
        }
        // SAFETY: the row has the group by the caller's promise.
        V::load_codes(unsafe { &*at.add(k) })
    }

    #[inline(always)]
    unsafe fn scales(&self, _row: usize, _group: usize) -> V {
        V::splat(1.0)
    }

    #[inline(always)]
    fn row_scale(&self, row: usize) -> f32 {
        f16_to_f32(u16::from_le_bytes(self.scales[row]))
    }

    #[inline(always)]
    fn offset(&self, _row: usize) -> f32 {
        0.0
    }
}

/// q8_row.
pub(super) fn row<V: Loops>(view: &Q8Row<'_>, job: Job<'_>) {
    products::<V, _>(&Bytes::new(view.codes(), view.scales(), view.cols()), job);
}

/// q8_2f.
pub(super) fn two_fields<V: Loops>(view: &Q8_2f<'_>, job: Job<'_>) {
    products::<V, _>(&Bytes::new(view.codes(), view.row_scales(), view.cols()), job);
}
