//! Codes of a few bits with AVX2.

use std::arch::x86_64::{
    __m128i, __m256i, _mm256_and_si256, _mm256_cvtepu8_epi16, _mm256_loadu_si256, _mm256_mullo_epi16, _mm256_or_si256,
    _mm256_packus_epi16, _mm256_set_m128i, _mm256_set1_epi8, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_srli_epi16,
    _mm256_sub_epi8,
};

use super::super::avx2::Avx2;
use super::super::packed::load_half;
use super::{Packed, WINDOW};

/// Bytes that bring the two bytes of each of eight codes to a lane of 16 bits, the first of them high.
const fn places(bits: usize) -> [u8; 32] {
    let mut places = [0; 32];
    let mut k = 0;
    while k < 8 {
        let byte = (k * bits / 8) as u8;
        places[2 * k] = byte + 1;
        places[2 * k + 1] = byte;
        places[16 + 2 * k] = byte + 1;
        places[16 + 2 * k + 1] = byte;
        k += 1;
    }
    places
}

/// Factors that move each code to the top of its lane.
const fn shifts(bits: usize) -> [u16; 16] {
    let mut shifts = [0; 16];
    let mut k = 0;
    while k < 8 {
        shifts[k] = 1 << (k * bits % 8);
        shifts[8 + k] = shifts[k];
        k += 1;
    }
    shifts
}

/// Places and shifts of `B` bits.
struct Tables<const B: usize>;

impl<const B: usize> Tables<B> {
    const PLACES: [u8; 32] = places(B);
    const SHIFTS: [u16; 16] = shifts(B);
}

/// Sixteen bytes from `at` on.
#[inline(always)]
fn half(source: &[u8; WINDOW], at: usize) -> __m128i {
    match source[at..].first_chunk() {
        Some(bytes) => load_half(bytes),
        None => unreachable!("a window has room behind its last eight codes"),
    }
}

impl Packed for Avx2 {
    #[inline(always)]
    fn bits<const B: usize>(source: &[u8; WINDOW], middle: i8) -> __m256i {
        // SAFETY: 32 bytes of the window and of the tables are readable; this type is only used where AVX2 has been
        // checked for.
        unsafe {
            let codes = match B {
                8 => _mm256_loadu_si256(source.as_ptr().cast()),
                4 => {
                    // A byte `hl` becomes the 16 bits `00hl`, then `hl0h`, and the mask leaves `0l0h`.
                    let wide = _mm256_cvtepu8_epi16(half(source, 0));
                    let moved = _mm256_or_si256(_mm256_slli_epi16::<8>(wide), _mm256_srli_epi16::<4>(wide));
                    _mm256_and_si256(moved, _mm256_set1_epi8(15))
                }
                _ => {
                    let places = _mm256_loadu_si256(Tables::<B>::PLACES.as_ptr().cast());
                    let shifts = _mm256_loadu_si256(Tables::<B>::SHIFTS.as_ptr().cast());
                    let even = _mm256_set_m128i(half(source, 2 * B), half(source, 0));
                    let odd = _mm256_set_m128i(half(source, 3 * B), half(source, B));
                    let even = _mm256_mullo_epi16(_mm256_shuffle_epi8(even, places), shifts);
                    let odd = _mm256_mullo_epi16(_mm256_shuffle_epi8(odd, places), shifts);
                    let (even, odd) = match B {
                        3 => (_mm256_srli_epi16::<13>(even), _mm256_srli_epi16::<13>(odd)),
                        5 => (_mm256_srli_epi16::<11>(even), _mm256_srli_epi16::<11>(odd)),
                        _ => (_mm256_srli_epi16::<10>(even), _mm256_srli_epi16::<10>(odd)),
                    };
                    _mm256_packus_epi16(even, odd)
                }
            };
            _mm256_sub_epi8(codes, _mm256_set1_epi8(middle))
        }
    }
}
