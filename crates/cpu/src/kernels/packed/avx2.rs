//! Groups of 32 with AVX2.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_cvtsi64_si128, _mm_insert_epi64, _mm_loadu_si128, _mm_prefetch,
    _mm_set_epi16, _mm256_abs_epi8, _mm256_add_epi32, _mm256_and_ps, _mm256_and_si256, _mm256_castsi256_ps,
    _mm256_castsi256_si128, _mm256_cmpgt_epi32, _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16,
    _mm256_cvtph_ps, _mm256_extracti128_si256, _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16,
    _mm256_set1_epi16, _mm256_set1_epi32, _mm256_setr_epi32, _mm256_sign_epi8, _mm256_srli_epi16, _mm256_storeu_si256,
};

use cortiq_quant::GROUP;

use super::super::avx2::Avx2;
use super::groups::{Groups, Input, Loops};
use super::tile::{self, Rows, Unpacked};
use super::{InputBits, Job, input};

/// Adds pairs of 16 bits to 32.
#[inline(always)]
fn pairs(sums: __m256i) -> __m256 {
    // SAFETY: only the functions below use it, whose callers have checked for AVX2.
    unsafe { _mm256_cvtepi32_ps(_mm256_madd_epi16(sums, _mm256_set1_epi16(1))) }
}

/// Products of 16 bits, added up in 32.
#[inline(always)]
fn dot16(low: __m256i, high: __m256i, x: &[u8; 2 * GROUP]) -> __m256 {
    // SAFETY: 64 bytes are readable; AVX2 as above.
    unsafe {
        let low = _mm256_madd_epi16(low, _mm256_loadu_si256(x.as_ptr().cast()));
        let high = _mm256_madd_epi16(high, _mm256_loadu_si256(x.as_ptr().add(GROUP).cast()));
        _mm256_cvtepi32_ps(_mm256_add_epi32(low, high))
    }
}

/// Sixteen bytes.
#[inline(always)]
pub(in crate::kernels) fn load_half(source: &[u8; 16]) -> __m128i {
    // SAFETY: sixteen bytes are readable; SSE2 is always there.
    unsafe { _mm_loadu_si128(source.as_ptr().cast()) }
}

/// Two words as sixteen bytes.
#[inline(always)]
pub(in crate::kernels) fn two_words(low: u64, high: u64) -> __m128i {
    // SAFETY: whoever has AVX2 has SSE4.1.
    unsafe { _mm_insert_epi64::<1>(_mm_cvtsi64_si128(low as i64), high as i64) }
}

impl Groups for Avx2 {
    type Codes = __m256i;

    #[inline(always)]
    fn load_codes(source: &[u8; GROUP]) -> __m256i {
        // SAFETY: 32 bytes are readable; AVX2 as above.
        unsafe { _mm256_loadu_si256(source.as_ptr().cast()) }
    }

    #[inline(always)]
    fn store_codes(codes: __m256i, target: &mut [u8; GROUP]) {
        // SAFETY: 32 bytes are writable; AVX2 as above.
        unsafe { _mm256_storeu_si256(target.as_mut_ptr().cast(), codes) };
    }

    #[inline(always)]
    fn dot8_signed(weights: __m256i, x: &[u8; GROUP]) -> Self {
        // The magnitudes of the weights, at most 128, times inputs with the weights' signs, at most 127: a pair is at
        // most 32512, so nothing saturates.
        // SAFETY: AVX2 as above.
        Self(unsafe {
            let x = _mm256_sign_epi8(Self::load_codes(x), weights);
            pairs(_mm256_maddubs_epi16(_mm256_abs_epi8(weights), x))
        })
    }

    #[inline(always)]
    fn dot8_unsigned(weights: __m256i, x: &[u8; GROUP]) -> Self {
        // A pair is at most 2 · 127 · 127.
        // SAFETY: AVX2 as above.
        Self(unsafe { pairs(_mm256_maddubs_epi16(weights, Self::load_codes(x))) })
    }

    #[inline(always)]
    fn dot16_signed(weights: __m256i, x: &[u8; 2 * GROUP]) -> Self {
        // SAFETY: AVX2 as above.
        let (low, high) = unsafe {
            (
                _mm256_cvtepi8_epi16(_mm256_castsi256_si128(weights)),
                _mm256_cvtepi8_epi16(_mm256_extracti128_si256::<1>(weights)),
            )
        };
        Self(dot16(low, high, x))
    }

    #[inline(always)]
    fn dot16_unsigned(weights: __m256i, x: &[u8; 2 * GROUP]) -> Self {
        // SAFETY: AVX2 as above.
        let (low, high) = unsafe {
            (
                _mm256_cvtepu8_epi16(_mm256_castsi256_si128(weights)),
                _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(weights)),
            )
        };
        Self(dot16(low, high, x))
    }

    #[inline(always)]
    fn dot16_nibbles(weights: &[u8; 16], x: &[u8; 2 * GROUP]) -> Self {
        // SAFETY: AVX2 as above.
        let (low, high) = unsafe {
            let wide = _mm256_cvtepu8_epi16(load_half(weights));
            (_mm256_and_si256(wide, _mm256_set1_epi16(15)), _mm256_srli_epi16::<4>(wide))
        };
        Self(dot16(low, high, x))
    }

    #[inline(always)]
    fn halves(source: &[[u8; 2]; 8]) -> Self {
        // SAFETY: sixteen bytes are readable; F16C is checked for together with AVX2.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(source.as_ptr().cast())) })
    }

    #[inline(always)]
    fn tile_halves<const N: usize>(source: &[[u8; N]; 8]) -> Self {
        let [a, b, c, d, e, f, g, h] = source;
        let half = |tile: &[u8; N]| i16::from_le_bytes([tile[0], tile[1]]);
        // SAFETY: F16C is checked for together with AVX2.
        Self(unsafe {
            let halves = _mm_set_epi16(half(h), half(g), half(f), half(e), half(d), half(c), half(b), half(a));
            _mm256_cvtph_ps(halves)
        })
    }

    #[inline(always)]
    fn first(self, count: usize) -> Self {
        // SAFETY: AVX2 as above.
        Self(unsafe {
            let lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
            let kept = _mm256_cmpgt_epi32(_mm256_set1_epi32(count as i32), lanes);
            _mm256_and_ps(self.0, _mm256_castsi256_ps(kept))
        })
    }

    #[inline(always)]
    fn prefetch(at: *const u8) {
        // SAFETY: a prefetch of any address has no effect but on speed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}

impl Loops for Avx2 {
    fn one<I: Input<Self>, M: Rows<Self>>(matrix: &M, job: &mut Job<'_>) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<I: Input<Avx2>, M: Rows<Avx2>>(matrix: &M, job: &mut Job<'_>) {
            tile::one::<Avx2, I, M>(matrix, job);
        }
        // SAFETY: only `Isa::detect` leads to this type, on a processor with AVX2, FMA and F16C.
        unsafe { inner::<I, M>(matrix, job) }
    }

    fn many<I: Input<Self>, M: Rows<Self>>(matrix: &M, job: &mut Job<'_>) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<I: Input<Avx2>, M: Rows<Avx2>>(matrix: &M, job: &mut Job<'_>) {
            tile::many::<Avx2, I, M>(matrix, job);
        }
        // SAFETY: only `Isa::detect` leads to this type, on a processor with AVX2, FMA and F16C.
        unsafe { inner::<I, M>(matrix, job) }
    }

    fn unpack<M: Rows<Self>>(matrix: &M, first: usize, target: Unpacked<'_>) {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn inner<M: Rows<Avx2>>(matrix: &M, first: usize, target: Unpacked<'_>) {
            tile::unpack::<Avx2, M>(matrix, first, target);
        }
        // SAFETY: only `Isa::detect` leads to this type, on a processor with AVX2, FMA and F16C.
        unsafe { inner(matrix, first, target) }
    }
}

/// See [`super::super::Isa::quantise`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantise(x: &[f32], columns: Option<&[[u8; 2]]>, form: (InputBits, bool), record: &mut [f32]) {
    match (columns, form) {
        (None, (InputBits::Eight, false)) => input::quantise(x, None, (InputBits::Eight, false), record),
        (None, (InputBits::Sixteen, false)) => input::quantise(x, None, (InputBits::Sixteen, false), record),
        (None, (InputBits::Sixteen, true)) => input::quantise(x, None, (InputBits::Sixteen, true), record),
        (columns, form) => input::quantise(x, columns, form, record),
    }
}
