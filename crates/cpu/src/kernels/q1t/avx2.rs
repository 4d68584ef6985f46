//! Words to a vector with AVX2.

use std::arch::x86_64::{__m256i, _mm256_set_m128i};

use super::super::avx2::Avx2;
use super::super::packed::two_words;
use super::Words;

impl Words for Avx2 {
    #[inline(always)]
    fn from_words([a, b, c, d]: [u64; 4]) -> __m256i {
        // SAFETY: this type is only used where AVX2 has been checked for.
        unsafe { _mm256_set_m128i(two_words(c, d), two_words(a, b)) }
    }
}
