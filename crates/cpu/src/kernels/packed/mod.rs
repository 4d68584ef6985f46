//! Products of quantised weights with quantised inputs: exact integer sums of groups of 32 columns, times the scales of
//! weight and input, added up in f32.
//!
//! A result is the sum of eight lanes, each one chain over the groups, then one correction for codes that are stored
//! with an offset. It is the same for one token and for many, so a result does not depend on the batch.
//!
//! * [`input`]: rows of activations in 8 or 16 bits;
//! * [`groups`]: what an instruction set has to offer, in `avx2` and `portable`;
//! * [`tile`]: the loops over groups, rows and tokens, generic over instruction set and dtype.
//!
//! How a dtype's codes are unpacked is in the folder of the dtype.

#[cfg(target_arch = "x86_64")]
mod avx2;
pub(super) mod groups;
mod input;
mod job;
mod outliers;
mod portable;
#[cfg(test)]
mod tests;
pub(super) mod tile;

use cortiq_quant::{GROUP, MatrixView};

#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
use super::portable::Plain;
use super::q1::Signs;
use super::q1t::Words;
use super::q4::Nibbles;
use super::vbit::Packed;
use super::{Isa, Kind, q1, q1t, q4, q8, vbit};
#[cfg(target_arch = "x86_64")]
pub(super) use avx2::{load_half, two_words};
pub use input::InputBits;
pub(crate) use input::{InputRows, Inputs};
pub(crate) use job::Job;
pub(super) use outliers::add_outliers;

/// Whether products with a matrix have kernels here: quantised, and a row is a whole number of groups. All others are
/// decoded to f32 and multiplied with f32 inputs.
pub(crate) fn takes(view: &MatrixView<'_>) -> bool {
    let floats = matches!(view, MatrixView::F32(_) | MatrixView::F16(_) | MatrixView::Bf16(_));
    !floats && view.cols().is_multiple_of(GROUP)
}

/// Everything that the dtypes need from an instruction set.
trait Unpacks: groups::Loops + Nibbles + Signs + Words + Packed {}

impl<V: groups::Loops + Nibbles + Signs + Words + Packed> Unpacks for V {}

/// See [`Isa::packed_products`].
fn products<V: Unpacks>(view: &MatrixView<'_>, job: Job<'_>) {
    match view {
        MatrixView::Q8Row(view) => q8::row::<V>(view, job),
        MatrixView::Q8_2f(view) => q8::two_fields::<V>(view, job),
        MatrixView::Q4Block(view) => q4::block::<V>(view, job),
        MatrixView::Q4Tiled(view) => q4::tiled::<V>(view, job),
        MatrixView::Vbit(view) => vbit::products::<V>(view, job),
        MatrixView::Q1(view) => q1::plain::<V>(view, job),
        MatrixView::Q1s(view) => q1::sparse::<V>(view, job),
        MatrixView::Q1t(view) => q1t::products::<V>(view, job),
        _ => unreachable!("`Job::check` has refused it"),
    }
}

impl Isa {
    /// Products of some rows of a matrix with some input rows, see [`Job`].
    ///
    /// # Panics
    /// When [`takes`] refuses the matrix, or sizes contradict each other.
    pub(crate) fn packed_products(self, view: &MatrixView<'_>, job: Job<'_>) {
        job.check(view);
        match self.0 {
            Kind::Portable => products::<Plain>(view, job),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => products::<Avx2>(view, job),
        }
    }

    /// Quantises one row of `x`, times `columns` where there are some, into a record of [`Inputs`]; `form` is the width
    /// of codes and whether even columns of a group come first.
    fn quantise(self, x: &[f32], columns: Option<&[[u8; 2]]>, form: (InputBits, bool), record: &mut [f32]) {
        match self.0 {
            Kind::Portable => input::quantise(x, columns, form, record),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` makes this kind, on a processor with AVX2, FMA and F16C.
            Kind::Avx2 => unsafe { avx2::quantise(x, columns, form, record) },
        }
    }
}
