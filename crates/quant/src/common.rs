//! Arithmetic and checks that several codecs share.

use rayon::prelude::*;

use crate::error::QuantError;
use crate::float::{f16_to_f32, f32_to_f16};

/// Elements of a quantisation group.
pub const GROUP: usize = 32;

/// Smallest stored weight scale, 2^-14, f16 bits 0x0400 (docs/cmf-format.md §6).
pub(crate) const MIN_SCALE: f32 = 1.0 / 16384.0;

/// 1.5 * 2^23: adding it to |x| <= 2^22 rounds x to an integer, half to even, in the low mantissa bits.
const ROUND_MAGIC: f32 = 12_582_912.0;

const ABS_MASK: u32 = 0x7FFF_FFFF;

/// Number of elements, checked so that every size derived later (at most 16 bytes per element or row) fits in usize.
pub(crate) fn element_count(dtype: &'static str, rows: usize, cols: usize) -> Result<usize, QuantError> {
    if rows == 0 || cols == 0 {
        return Err(QuantError::Empty { rows, cols });
    }
    rows.checked_mul(cols)
        .filter(|n| n.checked_mul(16).is_some_and(|bytes| isize::try_from(bytes).is_ok()))
        .ok_or(QuantError::TooLarge { dtype, rows, cols, what: "element count" })
}

/// Fails unless the payload has exactly the expected length.
pub(crate) fn check_length(
    dtype: &'static str,
    payload: &[u8],
    rows: usize,
    cols: usize,
    expected: usize,
) -> Result<(), QuantError> {
    if payload.len() == expected {
        return Ok(());
    }
    Err(length_error(dtype, payload, rows, cols, expected))
}

/// The error of a payload whose length is not `expected`.
pub(crate) fn length_error(
    dtype: &'static str,
    payload: &[u8],
    rows: usize,
    cols: usize,
    expected: usize,
) -> QuantError {
    QuantError::PayloadLength { dtype, rows, cols, expected: expected as u64, got: payload.len() as u64 }
}

/// Largest |v| as IEEE bits: for finite values they order like the values, and as integers the loop vectorises.
fn abs_max_bits(values: &[f32]) -> u32 {
    values.iter().fold(0i32, |m, v| m.max((v.to_bits() & ABS_MASK) as i32)) as u32
}

/// Largest magnitude of finite values.
pub(crate) fn abs_max(values: &[f32]) -> f32 {
    f32::from_bits(abs_max_bits(values))
}

/// |v| as an integer that orders like the magnitude.
pub(crate) fn abs_bits(v: f32) -> u32 {
    v.to_bits() & ABS_MASK
}

/// Finds the first value that is not finite or larger than `limit` in magnitude.
pub(crate) fn check_range(dtype: &'static str, values: &[f32], limit: f32) -> Result<(), QuantError> {
    const CHUNK: usize = 1 << 16;
    let limit_bits = limit.to_bits();
    let bad = values.par_chunks(CHUNK).enumerate().find_map_first(|(chunk, values)| {
        if abs_max_bits(values) <= limit_bits {
            return None;
        }
        let (at, v) = values.iter().enumerate().find(|(_, v)| abs_bits(**v) > limit_bits)?;
        Some((chunk * CHUNK + at, *v))
    });
    match bad {
        None => Ok(()),
        Some((index, v)) if v.is_finite() => Err(QuantError::OutOfRange { dtype, index, limit }),
        Some((index, _)) => Err(QuantError::NotFinite { index }),
    }
}

/// The scale helper S of §6: rounds to f16, not below 2^-14. Returns the f16 bits and the value.
pub(crate) fn scale(raw: f32) -> (u16, f32) {
    let value = f16_to_f32(f32_to_f16(raw)).max(MIN_SCALE);
    // Exact: `value` is an f16.
    (f32_to_f16(value), value)
}

/// `clamp(round_half_even(x), lo, hi)` for integer bounds within ±2^22. Clamping first gives the same integer.
#[inline(always)]
pub(crate) fn round_clamp(x: f32, lo: f32, hi: f32) -> i32 {
    let shifted = x.clamp(lo, hi) + ROUND_MAGIC;
    (shifted.to_bits() as i32).wrapping_sub(ROUND_MAGIC.to_bits() as i32)
}

/// Reads an f16 stored little-endian.
#[inline(always)]
pub(crate) fn f16_at(bytes: [u8; 2]) -> f32 {
    f16_to_f32(u16::from_le_bytes(bytes))
}

/// Decodes elements `start..start + out.len()` of a sequence of 32-wide groups; `group(g, out)` decodes group `g`.
///
/// The ends may lie inside a group: matrices whose width is not a multiple of 32 are flattened across rows.
#[inline(always)]
pub(crate) fn decode_run(start: usize, out: &mut [f32], mut group: impl FnMut(usize, &mut [f32; GROUP])) {
    let mut index = start / GROUP;
    let skip = start % GROUP;
    let mut rest = out;
    if skip != 0 {
        let take = rest.len().min(GROUP - skip);
        let mut whole = [0.0; GROUP];
        group(index, &mut whole);
        let (head, tail) = rest.split_at_mut(take);
        head.copy_from_slice(&whole[skip..skip + take]);
        rest = tail;
        index += 1;
    }
    let (groups, tail) = rest.as_chunks_mut::<GROUP>();
    for out in groups {
        group(index, out);
        index += 1;
    }
    if !tail.is_empty() {
        let mut whole = [0.0; GROUP];
        group(index, &mut whole);
        tail.copy_from_slice(&whole[..tail.len()]);
    }
}

/// Flat index of the first element of a run of row `row`; panics as documented by `decode_groups` of every view.
#[inline(always)]
pub(crate) fn run_start(rows: usize, cols: usize, row: usize, first_group: usize, len: usize) -> usize {
    assert!(row < rows, "row {row} of {rows}");
    let fits = first_group.checked_mul(GROUP).is_some_and(|col| col <= cols && len <= cols - col);
    assert!(fits, "a run of {len} from group {first_group} ends after column {cols}");
    row * cols + first_group * GROUP
}

/// Cuts `buffer` into consecutive parts of the given lengths, for parallel writing of rows of different sizes.
pub(crate) fn cut(mut buffer: &mut [u8], lengths: impl Iterator<Item = usize>) -> Vec<&mut [u8]> {
    lengths.map(|length| buffer.split_off_mut(..length).unwrap_or_default()).collect()
}

/// Doc'd shape accessors of a view struct with `rows` and `cols` fields, and `decode_row` in terms of `decode_groups`.
macro_rules! shape_methods {
    () => {
        /// Number of rows (output features).
        pub fn rows(&self) -> usize {
            self.rows
        }

        /// Number of columns (input features).
        pub fn cols(&self) -> usize {
            self.cols
        }

        /// Decodes one row to f32.
        ///
        /// # Panics
        /// Like slice indexing: when `row >= rows()` or `out.len() != cols()`.
        pub fn decode_row(&self, row: usize, out: &mut [f32]) {
            assert_eq!(out.len(), self.cols, "output length is the column count");
            self.decode_groups(row, 0, out);
        }
    };
}
pub(crate) use shape_methods;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_half_to_even_and_clamped() {
        for (x, want) in [
            (0.5, 0),
            (1.5, 2),
            (-0.5, 0),
            (-1.5, -2),
            (2.4999998, 2),
            (126.5, 126),
            (1e9, 127),
            (-1e9, -128),
            (-127.5, -128),
            (f32::MIN_POSITIVE, 0),
        ] {
            assert_eq!(round_clamp(x, -128.0, 127.0), want, "{x}");
        }
        for i in -20_000..20_000 {
            let x = i as f32 / 128.0;
            let want = x.round_ties_even().clamp(-128.0, 127.0) as i32;
            assert_eq!(round_clamp(x, -128.0, 127.0), want, "{x}");
        }
    }

    #[test]
    fn scales_have_a_floor() {
        assert_eq!(scale(0.0), (0x0400, MIN_SCALE));
        assert_eq!(scale(6.0e-5), (0x0400, MIN_SCALE));
        assert_eq!(scale(1.0), (0x3C00, 1.0));
    }

    #[test]
    fn range_check_names_the_first_index() {
        let mut values = vec![0.25f32; 200_000];
        assert_eq!(check_range("t", &values, 8.0), Ok(()));
        values[150_000] = 8.5;
        let over = QuantError::OutOfRange { dtype: "t", index: 150_000, limit: 8.0 };
        assert_eq!(check_range("t", &values, 8.0), Err(over));
        values[70_001] = f32::NAN;
        assert_eq!(check_range("t", &values, 8.0), Err(QuantError::NotFinite { index: 70_001 }));
        values[3] = f32::NEG_INFINITY;
        assert_eq!(check_range("t", &values, 8.0), Err(QuantError::NotFinite { index: 3 }));
    }

    #[test]
    fn runs_inside_groups() {
        let group = |g: usize, out: &mut [f32; GROUP]| {
            for (k, out) in out.iter_mut().enumerate() {
                *out = (g * GROUP + k) as f32;
            }
        };
        for start in 0..70 {
            for len in 0..100 {
                let mut out = vec![-1.0; len];
                decode_run(start, &mut out, group);
                let want: Vec<f32> = (start..start + len).map(|i| i as f32).collect();
                assert_eq!(out, want, "{start} {len}");
            }
        }
    }
}
