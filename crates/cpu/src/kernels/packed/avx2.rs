//! Groups of 32 with AVX2.

use std::arch::x86_64::{
    __m128i, __m256, __m256i, _MM_HINT_T0, _mm_cvtsi64_si128, _mm_insert_epi64, _mm_loadu_si128, _mm_prefetch,
    _mm256_abs_epi8, _mm256_add_epi32, _mm256_and_ps, _mm256_castsi256_ps, _mm256_castsi256_si128, _mm256_cmpgt_epi32,
    _mm256_cvtepi8_epi16, _mm256_cvtepi32_ps, _mm256_cvtepu8_epi16, _mm256_cvtph_ps, _mm256_extracti128_si256,
    _mm256_loadu_si256, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi16, _mm256_set1_epi32,
    _mm256_setr_epi32, _mm256_sign_epi8, _mm256_storeu_si256,
};

use cortiq_quant::{GROUP, MatrixView};

use super::super::avx2::Avx2;
use super::super::{q1, q1t, q4, q8, vbit};
use super::groups::{Bits8, Bits16, Groups};
use super::{Job, Width, input};

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
    fn halves(source: &[[u8; 2]; 8]) -> Self {
        // SAFETY: sixteen bytes are readable; F16C is checked for together with AVX2.
        Self(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(source.as_ptr().cast())) })
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

/// See [`super::super::Isa::packed_products`].
pub(super) fn products(view: &MatrixView<'_>, job: Job<'_>) {
    /// Calls a dtype's function for the width of the inputs.
    macro_rules! call {
        ($view:expr, $module:ident :: $function:ident, $type:ty) => {{
            #[target_feature(enable = "avx2,fma,f16c")]
            fn eight(view: &$type, job: Job<'_>) {
                $module::$function::<Avx2, Bits8>(view, job);
            }
            #[target_feature(enable = "avx2,fma,f16c")]
            fn sixteen(view: &$type, job: Job<'_>) {
                $module::$function::<Avx2, Bits16>(view, job);
            }
            // SAFETY: only `Isa::detect` leads here, on a processor with AVX2, FMA and F16C.
            unsafe {
                match job.x.width() {
                    Width::Eight => eight($view, job),
                    Width::Sixteen => sixteen($view, job),
                }
            }
        }};
    }
    use cortiq_quant::{Q1, Q1s, Q1t, Q4Block, Q4Tiled, Q8_2f, Q8Row, Vbit};
    match view {
        MatrixView::Q8Row(view) => call!(view, q8::row, Q8Row<'_>),
        MatrixView::Q8_2f(view) => call!(view, q8::two_fields, Q8_2f<'_>),
        MatrixView::Q4Block(view) => call!(view, q4::block, Q4Block<'_>),
        MatrixView::Q4Tiled(view) => call!(view, q4::tiled, Q4Tiled<'_>),
        MatrixView::Vbit(view) => call!(view, vbit::products, Vbit<'_>),
        MatrixView::Q1(view) => call!(view, q1::plain, Q1<'_>),
        MatrixView::Q1s(view) => call!(view, q1::sparse, Q1s<'_>),
        MatrixView::Q1t(view) => call!(view, q1t::products, Q1t<'_>),
        _ => unreachable!("`Job::check` has refused it"),
    }
}

/// See [`super::super::Isa::quantise`].
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) fn quantise(x: &[f32], columns: Option<&[[u8; 2]]>, width: Width, record: &mut [f32]) {
    match (columns, width) {
        (None, Width::Eight) => input::quantise(x, None, Width::Eight, record),
        (None, Width::Sixteen) => input::quantise(x, None, Width::Sixteen, record),
        (columns, width) => input::quantise(x, columns, width, record),
    }
}
