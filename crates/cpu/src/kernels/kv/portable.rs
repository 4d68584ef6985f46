//! Without special instructions.

use cortiq_quant::f16_to_f32;

use super::super::portable::Plain;
use super::super::tile::LANES;
use super::Stored;

impl Stored<Plain> for u16 {
    #[inline(always)]
    fn lanes(source: &[Self; LANES]) -> Plain {
        Plain(source.map(f16_to_f32))
    }

    #[inline(always)]
    fn single(self) -> f32 {
        f16_to_f32(self)
    }
}

impl Stored<Plain> for i8 {
    #[inline(always)]
    fn lanes(source: &[Self; LANES]) -> Plain {
        Plain(source.map(f32::from))
    }

    #[inline(always)]
    fn single(self) -> f32 {
        f32::from(self)
    }
}

/// The loops for one type of stored numbers.
macro_rules! loops {
    ($type:ty, $dot:ident, $add_weighted:ident, $decode:ident) => {
        pub(super) fn $dot(rows: &[$type], x: &[f32], out: &mut [f32]) {
            super::dot::<Plain, $type>(rows, x, out);
        }

        pub(super) fn $add_weighted(rows: &[$type], weights: &[f32], y: &mut [f32]) {
            super::add_weighted::<Plain, $type>(rows, weights, y);
        }

        pub(super) fn $decode(rows: &[$type], out: &mut [f32]) {
            super::decode::<Plain, $type>(rows, out);
        }
    };
}

loops!(u16, dot_f16, add_weighted_f16, decode_f16);
loops!(i8, dot_q8, add_weighted_q8, decode_q8);
