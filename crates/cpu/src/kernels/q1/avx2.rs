//! Signs with AVX2.

use std::arch::x86_64::{
    __m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_set1_epi8, _mm256_set1_epi32, _mm256_set1_epi64x,
    _mm256_setr_epi64x, _mm256_shuffle_epi8,
};

use super::super::avx2::Avx2;
use super::Signs;

impl Signs for Avx2 {
    #[inline(always)]
    fn signs(source: [u8; 4]) -> __m256i {
        // SAFETY: this type is only used where AVX2 has been checked for.
        unsafe {
            let places = _mm256_setr_epi64x(0, 0x0101_0101_0101_0101, 0x0202_0202_0202_0202, 0x0303_0303_0303_0303);
            let bits = _mm256_set1_epi64x(0x8040_2010_0804_0201_u64 as i64);
            let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(i32::from_le_bytes(source)), places);
            _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bytes, bits), bits), _mm256_set1_epi8(2))
        }
    }
}
