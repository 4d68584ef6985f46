//! vbit and vbit_ro: codes of 3, 4, 5, 6 or 8 bits by row, the highest bit first, an f16 scale per group of 32.
//!
//! Bytes read per row: `cols / 8 * bits`, `cols / 32 * 2` and 1. Codes become signed bytes; those of 8 bits keep an offset
//! of -1. AVX2, instructions per 32 weights: four loads, two shuffles, two multiplications that shift, two shifts, a
//! pack, a subtraction; then as q8_row. Rows have different widths, so they are taken one by one.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

use cortiq_quant::{GROUP, Vbit};

use super::packed::Job;
use super::packed::groups::{Groups, Loops};
use super::packed::tile::{self, Rows};
use super::q4::halves_of;

/// Bytes that [`Packed::bits`] may look at from the start of a group on, for any width.
const WINDOW: usize = 40;

/// Unpacks codes of a few bits.
pub(super) trait Packed: Groups {
    /// 32 codes of `B` bits from the front of `source`, each minus `middle`, as signed bytes.
    fn bits<const B: usize>(source: &[u8; WINDOW], middle: i8) -> Self::Codes;
}

/// Value of a stored code whose signed byte is 0, and what is left of the offset.
const fn middle(bits: usize) -> (u8, f32) {
    if bits == 8 { (128, -1.0) } else { ((1 << (bits - 1)) - 1, 0.0) }
}

/// See [`Rows::TOGETHER`].
const TOGETHER: usize = 1;

/// Rows of `B` bits.
struct OfWidth<'a, const B: usize>(&'a Vbit<'a>);

/// One row.
#[derive(Clone, Copy)]
struct Row<'a> {
    index: usize,
    /// From the row's first code to the end of the payload.
    codes: &'a [u8],
}

impl<'a, V: Packed, const B: usize> Rows<V> for OfWidth<'a, B> {
    type Row = Row<'a>;
    type At = &'a [u8];
    const SIGNED: bool = true;
    const SHIFTED: bool = true;
    const GROUPED: bool = true;
    const PACKED: bool = true;
    const TOGETHER: usize = TOGETHER;

    #[inline(always)]
    fn groups(&self) -> usize {
        self.0.cols() / GROUP
    }

    #[inline(always)]
    fn row(&self, index: usize) -> Row<'a> {
        let codes = &self.0.packed()[self.0.row_offset(index)..];
        assert!(codes.len() >= self.0.cols() / 8 * B, "a row of the matrix");
        Row { index, codes }
    }

    #[inline(always)]
    unsafe fn at(&self, row: Row<'a>, group: usize) -> &'a [u8] {
        // SAFETY: the row has the group by the caller's promise, so it starts inside.
        unsafe { row.codes.get_unchecked(group * 4 * B..) }
    }

    #[inline(always)]
    unsafe fn codes(at: &'a [u8], k: usize) -> V::Codes {
        // SAFETY: as above.
        let rest = unsafe { at.get_unchecked(k * 4 * B..) };
        let middle = middle(B).0 as i8;
        match rest.first_chunk() {
            Some(window) => V::bits::<B>(window, middle),
            None => V::bits::<B>(&padded(&rest[..4 * B]), middle),
        }
    }

    #[inline(always)]
    unsafe fn scales(&self, row: Row<'a>, group: usize) -> V {
        let (groups, all) = (self.0.cols() / GROUP, self.0.scales());
        let start = row.index * groups;
        halves_of::<V>(&all[start..start + groups], all, start, group)
    }

    #[inline(always)]
    fn row_scale(&self, _row: Row<'a>) -> f32 {
        1.0
    }

    #[inline(always)]
    fn offset(&self, _row: Row<'a>) -> f32 {
        middle(B).1
    }
}

/// The last group of a payload, with something behind it.
#[cold]
fn padded(codes: &[u8]) -> [u8; WINDOW] {
    let mut window = [0; WINDOW];
    window[..codes.len()].copy_from_slice(codes);
    window
}

/// Runs one expression with the matrix as rows of the width that a row has.
macro_rules! of_width {
    ($view:expr, $row:expr, $matrix:ident => $body:expr) => {
        match $view.widths()[$row] {
            3 => {
                let $matrix = OfWidth::<3>($view);
                $body
            }
            4 => {
                let $matrix = OfWidth::<4>($view);
                $body
            }
            5 => {
                let $matrix = OfWidth::<5>($view);
                $body
            }
            6 => {
                let $matrix = OfWidth::<6>($view);
                $body
            }
            // The view admits no other width than 8 here.
            _ => {
                let $matrix = OfWidth::<8>($view);
                $body
            }
        }
    };
}

/// vbit and vbit_ro.
pub(super) fn products<V: Loops + Packed>(view: &Vbit<'_>, mut job: Job<'_>) {
    if job.x.len() == 1 {
        for r in 0..job.rows {
            let out = &mut job.out[r..r + 1];
            let mut one = Job { first_row: job.first_row + r, rows: 1, x: job.x, out, scratch: &mut [] };
            of_width!(view, one.first_row, matrix => tile::one_of::<V, _>(&matrix, &mut one));
        }
        return;
    }
    tile::products_of_many::<V>(&mut job, true, |job, target| {
        for r in 0..job.rows {
            let row = job.first_row + r;
            of_width!(view, row, matrix => V::unpack(&matrix, row, target.row(r)));
        }
    });
}
