//! Four bits with AVX2.

use std::arch::x86_64::{
    __m256i, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_or_si256, _mm256_set1_epi8, _mm256_slli_epi16,
};

use super::super::avx2::Avx2;
use super::super::packed::load_half;
use super::Nibbles;

impl Nibbles for Avx2 {
    #[inline(always)]
    fn nibbles(source: &[u8; 16]) -> __m256i {
        // A byte `hl` becomes the 16 bits `00hl`, then `0h?l`, and the mask leaves `0h0l`.
        // SAFETY: this type is only used where AVX2 has been checked for.
        unsafe {
            let wide = _mm256_cvtepu8_epi16(load_half(source));
            _mm256_and_si256(_mm256_or_si256(wide, _mm256_slli_epi16::<4>(wide)), _mm256_set1_epi8(15))
        }
    }
}
