//! Four bits with AVX2.

use std::arch::x86_64::{__m256i, _mm_and_si128, _mm_set1_epi8, _mm_srli_epi16, _mm256_set_m128i};

use super::super::avx2::Avx2;
use super::super::packed::load_half;
use super::Nibbles;

impl Nibbles for Avx2 {
    #[inline(always)]
    fn nibbles(source: &[u8; 16]) -> __m256i {
        // SAFETY: this type is only used where AVX2 has been checked for.
        unsafe {
            let (bytes, low) = (load_half(source), _mm_set1_epi8(15));
            _mm256_set_m128i(_mm_and_si128(_mm_srli_epi16::<4>(bytes), low), _mm_and_si128(bytes, low))
        }
    }
}
