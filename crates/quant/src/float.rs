//! f32, f16 and bf16 payloads, and the half-float rules of docs/cmf-format.md §6.

use rayon::prelude::*;

use crate::common::{check_length, element_count, run_start, shape_methods};
use crate::error::QuantError;

/// Values that one parallel task converts.
const CHUNK: usize = 1 << 15;

/// Converts f32 to f16 by the rule of docs/cmf-format.md §6: nearest even for normal results, half up in magnitude
/// for subnormal results, infinity from 65520 on, every NaN to 0x7E00 with its sign.
///
/// Without branches, so that loops over it vectorise.
#[inline(always)]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16) & 0x8000;
    let abs = bits & 0x7FFF_FFFF;
    // Exponent re-biased from 127 to 15; adding just under half an ulp plus the last kept bit rounds half to even.
    let normal = (abs.wrapping_add(0xFFF + ((abs >> 13) & 1)) >> 13).wrapping_sub(112 << 10);
    // y = |x| * 2^24 is exact and counts ulps of a subnormal, at most 1024 (2^-14 bounds it). Adding 2^23 rounds it half
    // to even in the low bits; a tie that went down is one short of half up.
    let y = f32::from_bits(abs.min(0x3880_0000)) * 16_777_216.0;
    let shifted = y + 8_388_608.0;
    let tie_down = y - (shifted - 8_388_608.0) == 0.5;
    let subnormal = (shifted.to_bits() & 0xFFFF) + u32::from(tie_down);
    let finite = if abs < 0x3880_0000 { subnormal } else { normal };
    let limited = if abs >= 0x4780_0000 { 0x7C00 } else { finite };
    let magnitude = if abs > 0x7F80_0000 { 0x7E00 } else { limited };
    (sign | magnitude) as u16
}

/// Converts f16 to f32 exactly; a NaN keeps its payload shifted left by 13 (docs/cmf-format.md §6).
///
/// Without branches, so that loops over it vectorise: about 2.2 values per ns with SSE2 alone. A table of all 65536
/// values reaches 2.7 while its 256 KiB stay cached, which a decoder's own data do not allow.
#[inline(always)]
pub fn f16_to_f32(half: u16) -> f32 {
    let abs = u32::from(half & 0x7FFF);
    let sign = u32::from(half & 0x8000) << 16;
    let normal = (abs << 13) + (112 << 23);
    let special = (abs << 13) | 0x7F80_0000;
    // A subnormal is mant * 2^-24, exact in f32.
    let subnormal = (abs as i32 as f32 * (1.0 / 16_777_216.0)).to_bits();
    let finite = if abs < 0x0400 { subnormal } else { normal };
    let magnitude = if abs >= 0x7C00 { special } else { finite };
    f32::from_bits(sign | magnitude)
}

/// Converts f32 to bf16, nearest even; NaN stays NaN (quieted). The format has no own rule for writing bf16 (§7.1).
#[inline(always)]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7FFF + ((bits >> 16) & 1)) >> 16;
    let nan = (bits >> 16) | 0x40;
    (if bits & 0x7FFF_FFFF > 0x7F80_0000 { nan } else { rounded }) as u16
}

/// Writes every value as `N` bytes, in parallel chunks.
fn encode_with<const N: usize>(values: &[f32], convert: impl Fn(f32) -> [u8; N] + Sync) -> Result<Vec<u8>, QuantError> {
    let mut out = vec![0; values.len() * N];
    out.par_chunks_mut(CHUNK * N).zip(values.par_chunks(CHUNK)).for_each(|(out, values)| {
        for (out, value) in out.as_chunks_mut::<N>().0.iter_mut().zip(values) {
            *out = convert(*value);
        }
    });
    Ok(out)
}

/// Encodes f32, bit for bit.
pub(crate) fn encode_f32(values: &[f32]) -> Result<Vec<u8>, QuantError> {
    encode_with(values, f32::to_le_bytes)
}

/// Encodes f16; infinities and NaN pass through.
pub(crate) fn encode_f16(values: &[f32]) -> Result<Vec<u8>, QuantError> {
    encode_with(values, |v| f32_to_f16(v).to_le_bytes())
}

/// Encodes bf16; infinities and NaN pass through.
pub(crate) fn encode_bf16(values: &[f32]) -> Result<Vec<u8>, QuantError> {
    encode_with(values, |v| f32_to_bf16(v).to_le_bytes())
}

/// A plain float view: `$name` with elements of `$bytes` bytes.
macro_rules! float_view {
    ($(#[$doc:meta])* $name:ident, $dtype:literal, $bytes:literal, $convert:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name<'a> {
            data: &'a [[u8; $bytes]],
            rows: usize,
            cols: usize,
        }

        impl<'a> $name<'a> {
            shape_methods!();

            /// Checks the length of `payload` for a `[rows, cols]` matrix.
            ///
            /// # Errors
            /// [`QuantError::Empty`], [`QuantError::TooLarge`], [`QuantError::PayloadLength`].
            pub fn new(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
                let n = element_count($dtype, rows, cols)?;
                check_length($dtype, payload, rows, cols, n * $bytes)?;
                let data = payload.as_chunks().0;
                Ok(Self { data, rows, cols })
            }

            /// All elements, little-endian, row-major; the address need not be aligned.
            pub fn data(&self) -> &'a [[u8; $bytes]] {
                self.data
            }

            /// Decodes `out.len()` elements of a row from column `32 * first_group` on.
            ///
            /// # Panics
            /// Like slice indexing: when the run is not inside the row.
            pub fn decode_groups(&self, row: usize, first_group: usize, out: &mut [f32]) {
                let start = run_start(self.rows, self.cols, row, first_group, out.len());
                let data = &self.data[start..start + out.len()];
                let convert: fn([u8; $bytes]) -> f32 = $convert;
                for (out, bytes) in out.iter_mut().zip(data) {
                    *out = convert(*bytes);
                }
            }
        }
    };
}

float_view!(
    /// f32 matrix: `rows * cols` little-endian floats, row-major.
    F32, "f32", 4, f32::from_le_bytes
);
float_view!(
    /// f16 matrix: `rows * cols` little-endian halves, row-major.
    F16, "f16", 2, |b| f16_to_f32(u16::from_le_bytes(b))
);
float_view!(
    /// bf16 matrix: `rows * cols` little-endian bfloats, row-major.
    Bf16, "bf16", 2, |b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
);

#[cfg(test)]
mod tests {
    use super::*;

    /// §6 written out as the text has it.
    fn f32_to_f16_as_written(value: f32) -> u16 {
        let bits = value.to_bits();
        let sign = ((bits >> 16) & 0x8000) as u16;
        let (exp, mant) = ((bits >> 23) & 0xFF, bits & 0x7F_FFFF);
        if exp == 255 {
            return sign | if mant == 0 { 0x7C00 } else { 0x7E00 };
        }
        let e = exp as i32 - 112;
        if e >= 31 {
            return sign | 0x7C00;
        }
        if e < -10 {
            return sign;
        }
        if e <= 0 {
            let (m, shift) = (0x80_0000 | mant, 14 - e);
            return sign | ((m >> shift) + ((m >> (shift - 1)) & 1)) as u16;
        }
        let (kept, rest) = (((e as u32) << 10) | (mant >> 13), mant & 0x1FFF);
        let up = rest > 0x1000 || (rest == 0x1000 && kept & 1 == 1);
        sign | (kept + u32::from(up)) as u16
    }

    #[test]
    fn table_of_the_format_page() {
        for (bits, want) in [
            (0x3300_0000u32, 0x0001u16),
            (0x32FF_FFFF, 0x0000),
            (0x33C0_0000, 0x0002),
            (0x387F_DFFF, 0x03FF),
            (0x387F_E000, 0x0400),
            (0x477F_EFFF, 0x7BFF),
            (0x477F_F000, 0x7C00),
            (0x3F80_1000, 0x3C00),
            (0x3F80_3000, 0x3C02),
            (0x7F80_0001, 0x7E00),
            (0xFFFF_FFFF, 0xFE00),
            (0x7F80_0000, 0x7C00),
            (0x8000_0000, 0x8000),
        ] {
            assert_eq!(f32_to_f16(f32::from_bits(bits)), want, "{bits:08X}");
        }
    }

    #[test]
    fn every_half_survives_a_round_trip() {
        for half in 0..=u16::MAX {
            let value = f16_to_f32(half);
            let is_nan = half & 0x7FFF > 0x7C00;
            if is_nan {
                assert_eq!(value.to_bits() & 0x7F_FFFF, u32::from(half & 0x3FF) << 13);
                assert_eq!(f32_to_f16(value), (half & 0x8000) | 0x7E00);
            } else {
                assert_eq!(value.to_bits(), half::f16::from_bits(half).to_f32().to_bits());
                assert_eq!(value.to_bits(), cortiq_cmf::f16_to_f32(half).to_bits());
                assert_eq!(f32_to_f16(value), half);
            }
        }
    }

    #[test]
    fn rounding_equals_the_written_rule() {
        // Every sign, exponent and upper 11 mantissa bits, with the lower bits where roundings decide.
        for top in 0..(1u32 << 20) {
            for low in [0, 1, 0x7FF, 0x800, 0x801, 0xFFF] {
                let value = f32::from_bits(top << 12 | low);
                assert_eq!(f32_to_f16(value), f32_to_f16_as_written(value), "{:08X}", value.to_bits());
            }
        }
    }

    #[test]
    fn bf16_rounds_to_even() {
        for top in 0..=u16::MAX {
            for low in [0u32, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF] {
                let value = f32::from_bits(u32::from(top) << 16 | low);
                let want = half::bf16::from_f32(value).to_bits();
                assert_eq!(f32_to_bf16(value), want, "{:08X}", value.to_bits());
            }
        }
    }
}
