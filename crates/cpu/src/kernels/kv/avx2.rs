//! For AVX2 with FMA and F16C.

use std::arch::x86_64::{_mm_loadl_epi64, _mm_loadu_si128, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps};

use cortiq_quant::f16_to_f32;

use super::super::avx2::Avx2;
use super::super::tile::LANES;
use super::Stored;

// The methods are inlined into the functions below, which have the instructions enabled.
impl Stored<Avx2> for u16 {
    #[inline(always)]
    fn lanes(source: &[Self; LANES]) -> Avx2 {
        // SAFETY: 16 bytes are readable; this type is only used by the functions below, whose callers have checked for
        // F16C.
        Avx2(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(source.as_ptr().cast())) })
    }

    #[inline(always)]
    fn single(self) -> f32 {
        f16_to_f32(self)
    }
}

impl Stored<Avx2> for i8 {
    #[inline(always)]
    fn lanes(source: &[Self; LANES]) -> Avx2 {
        // SAFETY: 8 bytes are readable; AVX2 as above.
        Avx2(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(source.as_ptr().cast()))) })
    }

    #[inline(always)]
    fn single(self) -> f32 {
        f32::from(self)
    }
}

/// The loops for one type of stored numbers.
macro_rules! loops {
    ($type:ty, $dot:ident, $add_weighted:ident, $decode:ident) => {
        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $dot(rows: &[$type], x: &[f32], out: &mut [f32]) {
            super::dot::<Avx2, $type>(rows, x, out);
        }

        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $add_weighted(rows: &[$type], weights: &[f32], y: &mut [f32]) {
            super::add_weighted::<Avx2, $type>(rows, weights, y);
        }

        #[target_feature(enable = "avx2,fma,f16c")]
        pub(super) fn $decode(rows: &[$type], out: &mut [f32]) {
            super::decode::<Avx2, $type>(rows, out);
        }
    };
}

loops!(u16, dot_f16, add_weighted_f16, decode_f16);
loops!(i8, dot_q8, add_weighted_q8, decode_q8);
