//! vbit and vbit_ro: every row has its own code width of 3 to 8 bits (docs/cmf-format.md §7.6, §7.7).
//!
//! `[u8 bits: rows][f16 s: rows*groups][u32 off: rows+1, vbit_ro only][packed rows]`; codes are packed MSB first,
//! w = (u - L) * s[row, group] with L = 2^(bits-1) - 1. A group of 32 codes is a whole number of bytes.

use rayon::prelude::*;

use crate::common::{
    GROUP, abs_max, check_length, cut, decode_run, element_count, f16_at, length_error, round_clamp, run_start,
    shape_methods,
};
use crate::error::QuantError;
use crate::fit::Fit;

/// Widths that a row may have.
pub(crate) const WIDTHS: [u8; 5] = [3, 4, 5, 6, 8];

/// Largest magnitude whose group scale is finite at the least width, where codes reach 3.
pub(crate) const MAX_ABS: f32 = 65504.0 * 3.0;

/// Codes packed and unpacked together: `width` bytes.
const OCTET: usize = 8;

/// Where each row starts in the packed area.
#[derive(Debug, Clone)]
enum Offsets<'a> {
    /// The file's own table (vbit_ro), `rows + 1` little-endian entries.
    Stored(&'a [[u8; 4]]),
    /// Computed at construction (vbit).
    Computed(Vec<usize>),
}

/// Checked vbit or vbit_ro matrix.
#[derive(Debug, Clone)]
pub struct Vbit<'a> {
    widths: &'a [u8],
    scales: &'a [[u8; 2]],
    offsets: Offsets<'a>,
    packed: &'a [u8],
    rows: usize,
    cols: usize,
}

/// Bytes of a row: a whole number, as `cols % 32 == 0`.
fn row_bytes(cols: usize, width: u8) -> usize {
    cols / OCTET * usize::from(width)
}

impl<'a> Vbit<'a> {
    shape_methods!();

    /// Checks a `vbit` payload (no offset table) and computes the row offsets.
    ///
    /// # Errors
    /// [`QuantError::Empty`], [`QuantError::TooLarge`], [`QuantError::Shape`] unless `cols % 32 == 0`,
    /// [`QuantError::PayloadLength`], [`QuantError::Corrupt`] for an unknown width.
    pub fn new_plain(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        let (widths, scales, packed) = split_headers("vbit", payload, rows, cols, 0)?;
        let mut end = 0;
        let mut offsets = Vec::with_capacity(rows);
        for width in widths {
            offsets.push(end);
            end += row_bytes(cols, *width);
        }
        check_length("vbit", payload, rows, cols, payload.len() - packed.len() + end)?;
        let offsets = Offsets::Computed(offsets);
        Ok(Self { widths, scales, offsets, packed, rows, cols })
    }

    /// Checks a `vbit_ro` payload (with offset table).
    ///
    /// # Errors
    /// As [`Vbit::new_plain`]; also [`QuantError::Corrupt`] where the table does not follow from the widths.
    pub fn new_with_offsets(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        let table_bytes = rows.saturating_add(1).saturating_mul(4);
        let (widths, scales, rest) = split_headers("vbit_ro", payload, rows, cols, table_bytes)?;
        let (table, packed) = rest.split_at(table_bytes);
        let table = table.as_chunks().0;
        let ends = std::iter::once(0u64).chain(widths.iter().scan(0u64, |end, width| {
            *end += row_bytes(cols, *width) as u64;
            Some(*end)
        }));
        let mut total = 0;
        for (row, (stored, end)) in table.iter().zip(ends).enumerate() {
            if u64::from(u32::from_le_bytes(*stored)) != end {
                return Err(QuantError::Corrupt {
                    dtype: "vbit_ro",
                    what: format!("offset {row} is {}, the widths give {end}", u32::from_le_bytes(*stored)),
                });
            }
            total = end as usize;
        }
        check_length("vbit_ro", payload, rows, cols, payload.len() - packed.len() + total)?;
        let offsets = Offsets::Stored(table);
        Ok(Self { widths, scales, offsets, packed, rows, cols })
    }

    /// Whether the payload has an offset table, that is, whether its dtype is vbit_ro.
    pub fn has_offset_table(&self) -> bool {
        matches!(self.offsets, Offsets::Stored(_))
    }

    /// Code width of each row in bits: 3, 4, 5, 6 or 8.
    pub fn widths(&self) -> &'a [u8] {
        self.widths
    }

    /// Scales `[rows, cols / 32]`, f16 little-endian.
    pub fn scales(&self) -> &'a [[u8; 2]] {
        self.scales
    }

    /// The packed codes of all rows.
    pub fn packed(&self) -> &'a [u8] {
        self.packed
    }

    /// Where row `row` starts in [`Vbit::packed`]. Panics like slice indexing when `row >= rows()`.
    pub fn row_offset(&self, row: usize) -> usize {
        match &self.offsets {
            Offsets::Stored(table) => u32::from_le_bytes(table[row]) as usize,
            Offsets::Computed(table) => table[row],
        }
    }

    /// Packed codes of row `row`, `cols * width / 8` bytes. Panics like slice indexing when `row >= rows()`.
    pub fn row_codes(&self, row: usize) -> &'a [u8] {
        let start = self.row_offset(row);
        &self.packed[start..start + row_bytes(self.cols, self.widths[row])]
    }

    /// Decodes `out.len()` elements of a row from column `32 * first_group` on.
    ///
    /// # Panics
    /// Like slice indexing: when the run is not inside the row.
    pub fn decode_groups(&self, row: usize, first_group: usize, out: &mut [f32]) {
        let start = run_start(self.rows, self.cols, row, first_group, out.len());
        let scales = &self.scales[start / GROUP..];
        let codes = self.row_codes(row);
        match self.widths[row] {
            3 => decode_width::<3>(codes, scales, first_group, out),
            4 => decode_width::<4>(codes, scales, first_group, out),
            5 => decode_width::<5>(codes, scales, first_group, out),
            6 => decode_width::<6>(codes, scales, first_group, out),
            // Construction admits no other width than 8 here.
            _ => decode_width::<8>(codes, scales, first_group, out),
        }
    }
}

type Headers<'a> = (&'a [u8], &'a [[u8; 2]], &'a [u8]);

/// Splits off widths and scales, checks the widths and that `more` bytes follow.
fn split_headers<'a>(
    name: &'static str,
    payload: &'a [u8],
    rows: usize,
    cols: usize,
    more: usize,
) -> Result<Headers<'a>, QuantError> {
    let groups = element_count(name, rows, cols)? / GROUP;
    if !cols.is_multiple_of(GROUP) {
        return Err(QuantError::Shape { dtype: name, rows, cols, needs: "columns must be a multiple of 32" });
    }
    let least = rows + 2 * groups + more;
    if payload.len() < least {
        return Err(length_error(name, payload, rows, cols, least));
    }
    let (widths, rest) = payload.split_at(rows);
    if let Some(row) = widths.iter().position(|width| !WIDTHS.contains(width)) {
        return Err(QuantError::Corrupt {
            dtype: name,
            what: format!("row {row} has width {}, not 3, 4, 5, 6 or 8", widths[row]),
        });
    }
    let (scales, rest) = rest.split_at(2 * groups);
    Ok((widths, scales.as_chunks().0, rest))
}

/// Decodes groups of a row whose codes have `B` bits. `scales` starts at the run's first group.
fn decode_width<const B: usize>(codes: &[u8], scales: &[[u8; 2]], first_group: usize, out: &mut [f32]) {
    let octets = &codes.as_chunks::<B>().0[first_group * GROUP / OCTET..];
    decode_run(0, out, |group, out| {
        let s = f16_at(scales[group]);
        let octets = &octets[group * GROUP / OCTET..][..GROUP / OCTET];
        for (out, octet) in out.as_chunks_mut::<OCTET>().0.iter_mut().zip(octets) {
            decode_octet::<B>(octet, s, out);
        }
    });
}

/// Decodes eight codes of `B` bits, MSB first.
#[inline(always)]
fn decode_octet<const B: usize>(octet: &[u8; B], s: f32, out: &mut [f32; OCTET]) {
    let word = octet.iter().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    let (mask, middle) = ((1u64 << B) - 1, (1i32 << (B - 1)) - 1);
    for (k, out) in out.iter_mut().enumerate() {
        let code = (word >> (B * (OCTET - 1 - k))) & mask;
        *out = (code as i32 - middle) as f32 * s;
    }
}

/// The width nearest to `target`, the smaller on a tie.
fn nearest_width(target: f32) -> u8 {
    let mut best = WIDTHS[0];
    for width in WIDTHS {
        if (target - f32::from(width)).abs() < (target - f32::from(best)).abs() {
            best = width;
        }
    }
    best
}

/// Width of each row: the wanted mean plus how many binades the row's peak lies above the mean peak (§7.6).
fn choose_widths(values: &[f32], rows: usize, cols: usize, mean_milli_bits: u32) -> Vec<u8> {
    let peaks: Vec<f32> = values.par_chunks(cols).map(|row| abs_max(row).max(1e-12).log2()).collect();
    let mean = peaks.iter().fold(0.0f32, |sum, peak| sum + peak) / rows as f32;
    let wanted = mean_milli_bits as f32 / 1000.0;
    peaks.iter().map(|peak| nearest_width(wanted + (peak - mean))).collect()
}

/// Encodes vbit_ro (`with_offsets`) or vbit; the caller has checked shape and range.
pub(crate) fn encode(
    values: &[f32],
    rows: usize,
    cols: usize,
    mean_milli_bits: u32,
    with_offsets: bool,
    fit: Fit,
) -> Result<Vec<u8>, QuantError> {
    let dtype = if with_offsets { "vbit_ro" } else { "vbit" };
    if !(3000..=8000).contains(&mean_milli_bits) {
        return Err(QuantError::Option {
            dtype,
            option: "mean_milli_bits",
            what: format!("{mean_milli_bits} is outside 3000..=8000"),
        });
    }
    let widths = choose_widths(values, rows, cols, mean_milli_bits);
    let (mut out, table_end) = allocate(dtype, &widths, rows, cols, with_offsets)?;
    let (head, packed) = out.split_at_mut(table_end);
    let scales = &mut head[rows..rows + values.len() / GROUP * 2];
    let packed = cut(packed, widths.iter().map(|width| row_bytes(cols, *width)));
    packed
        .into_par_iter()
        .zip(scales.as_chunks_mut::<2>().0.par_chunks_mut(cols / GROUP))
        .zip(values.par_chunks(cols))
        .zip(&widths)
        .for_each(|(((packed, scales), values), width)| encode_row(values, *width, fit, scales, packed));
    Ok(out)
}

/// Allocates a payload for rows of the given widths and writes the widths and the offset table.
///
/// Returns it with the start of the packed area; `rows..rows + 2 * groups` is where the scales go.
pub(crate) fn allocate(
    dtype: &'static str,
    widths: &[u8],
    rows: usize,
    cols: usize,
    with_offsets: bool,
) -> Result<(Vec<u8>, usize), QuantError> {
    let scales_end = rows + rows * (cols / GROUP) * 2;
    let table_end = scales_end + if with_offsets { 4 * (rows + 1) } else { 0 };
    let packed: usize = widths.iter().map(|width| row_bytes(cols, *width)).sum();
    if with_offsets && u32::try_from(packed).is_err() {
        return Err(QuantError::TooLarge { dtype, rows, cols, what: "row offsets are 32 bits" });
    }
    let mut out = vec![0; table_end + packed];
    out[..rows].copy_from_slice(widths);
    if with_offsets {
        let mut end = 0;
        let table = out[scales_end..table_end].as_chunks_mut::<4>().0;
        // Entry 0 stays zero.
        for (entry, width) in table.iter_mut().skip(1).zip(widths) {
            end += row_bytes(cols, *width);
            *entry = (end as u32).to_le_bytes();
        }
    }
    Ok((out, table_end))
}

fn encode_row(values: &[f32], width: u8, fit: Fit, scales: &mut [[u8; 2]], packed: &mut [u8]) {
    let middle = (1i32 << (width - 1)) - 1;
    let (lo, hi) = (-middle as f32, (middle + 1) as f32);
    let width = usize::from(width);
    let groups = values.as_chunks::<GROUP>().0;
    for ((group, stored), packed) in groups.iter().zip(scales).zip(packed.chunks_exact_mut(width * GROUP / OCTET)) {
        let (bits, s) = fit.group_scale(group, lo, hi, hi_scale(middle));
        *stored = bits.to_le_bytes();
        for (octet, packed) in group.as_chunks::<OCTET>().0.iter().zip(packed.chunks_exact_mut(width)) {
            let word = octet.iter().fold(0u64, |word, v| word << width | (round_clamp(v / s, lo, hi) + middle) as u64);
            packed.copy_from_slice(&word.to_be_bytes()[OCTET - width..]);
        }
    }
}

/// Divisor of the group peak: max(2^(bits-1) - 1, 1).
fn hi_scale(middle: i32) -> f32 {
    middle.max(1) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn width_ties_go_down() {
        for (target, want) in [(-4.0, 3), (3.5, 3), (3.51, 4), (4.5, 4), (5.5, 5), (7.0, 6), (7.01, 8), (40.0, 8)] {
            assert_eq!(nearest_width(target), want, "{target}");
        }
    }

    #[test]
    fn broken_tables_are_named() {
        let values: Vec<f32> = (0..96).map(|i| (i as f32 - 40.0) * 0.01).collect();
        let good = encode(&values, 3, 32, 4250, true, Fit::Peak).unwrap();
        assert!(Vbit::new_with_offsets(&good, 3, 32).is_ok());
        let table = 3 + 3 * 2;
        for (at, value) in [(0, 9u8), (1, 7), (2, 0), (table, 1), (table + 4, 0), (table + 11, 1)] {
            let mut bad = good.clone();
            bad[at] = value;
            let error = Vbit::new_with_offsets(&bad, 3, 32).unwrap_err();
            assert!(matches!(error, QuantError::Corrupt { .. }), "{at}: {error}");
        }
    }
}
