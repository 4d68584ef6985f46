//! q1s: a q1 base and a list of f16 outliers by flat index (docs/cmf-format.md §7.9).
//!
//! `[q1 base: 6 * groups][u32 count][count x (u32 flat index, f16 value)]`; the list overwrites the base.
//! The layout's first reader ignored a broken list; here a broken list is an error.

use rayon::prelude::*;

use crate::common::{
    GROUP, abs_bits, check_length, cut, element_count, f16_at, length_error, run_start, shape_methods,
};
use crate::error::QuantError;
use crate::float::f32_to_f16;
use crate::q1::{Q1, TILE, encode_row_carry};
use crate::select::key_of_rank;

const NAME: &str = "q1s";

/// Bytes of an entry: flat index and value.
pub(crate) const ENTRY: usize = 6;

/// Largest fraction of kept weights (§7.9).
const MAX_KEEP: f32 = 0.25;

/// Checked q1s matrix.
#[derive(Debug, Clone, Copy)]
pub struct Q1s<'a> {
    base: Q1<'a>,
    entries: &'a [[u8; ENTRY]],
    rows: usize,
    cols: usize,
}

/// Flat index of an entry.
#[inline(always)]
fn index_of(entry: &[u8; ENTRY]) -> usize {
    let [a, b, c, d, _, _] = *entry;
    u32::from_le_bytes([a, b, c, d]) as usize
}

impl<'a> Q1s<'a> {
    shape_methods!();

    /// Checks `payload` as a `[rows, cols]` matrix: length, indices in range and strictly ascending.
    ///
    /// # Errors
    /// [`QuantError::Empty`], [`QuantError::TooLarge`], [`QuantError::PayloadLength`], [`QuantError::Corrupt`].
    pub fn new(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        let n = element_count(NAME, rows, cols)?;
        let base_len = n.div_ceil(GROUP) * TILE;
        let least = base_len + 4;
        let too_short = || length_error(NAME, payload, rows, cols, least);
        let (base, rest) = payload.split_at_checked(base_len).ok_or_else(too_short)?;
        let (count, entries) = rest.split_first_chunk::<4>().ok_or_else(too_short)?;
        let count = u32::from_le_bytes(*count);
        let expected = (count as usize).checked_mul(ENTRY).and_then(|len| len.checked_add(least));
        check_length(NAME, payload, rows, cols, expected.unwrap_or(usize::MAX))?;
        let entries = entries.as_chunks::<ENTRY>().0;
        check_entries(entries, n)?;
        let base = Q1::new(base, rows, cols)?;
        Ok(Self { base, entries, rows, cols })
    }

    /// The base matrix.
    pub fn base(&self) -> Q1<'a> {
        self.base
    }

    /// Entries, ascending by flat index: four bytes index, two bytes f16 value, little-endian.
    pub fn entries(&self) -> &'a [[u8; ENTRY]] {
        self.entries
    }

    /// Entries whose flat index lies in `start..end`; O(log entries).
    fn entries_between(&self, start: usize, end: usize) -> &'a [[u8; ENTRY]] {
        let tail = &self.entries[self.entries.partition_point(|e| index_of(e) < start)..];
        // A row has few entries: walk instead of a second search over the whole list.
        let len = tail.iter().take_while(|e| index_of(e) < end).count();
        &tail[..len]
    }

    /// Entries of row `row`; O(log entries). Panics like slice indexing when `row >= rows()`.
    pub fn row_entries(&self, row: usize) -> &'a [[u8; ENTRY]] {
        let start = run_start(self.rows, self.cols, row, 0, self.cols);
        self.entries_between(start, start + self.cols)
    }

    /// Decodes `out.len()` elements of a row from column `32 * first_group` on.
    ///
    /// # Panics
    /// Like slice indexing: when the run is not inside the row.
    pub fn decode_groups(&self, row: usize, first_group: usize, out: &mut [f32]) {
        self.base.decode_groups(row, first_group, out);
        let start = run_start(self.rows, self.cols, row, first_group, out.len());
        for entry in self.entries_between(start, start + out.len()) {
            out[index_of(entry) - start] = f16_at([entry[4], entry[5]]);
        }
    }
}

fn check_entries(entries: &[[u8; ENTRY]], n: usize) -> Result<(), QuantError> {
    let mut next = 0;
    for (at, entry) in entries.iter().enumerate() {
        let index = index_of(entry);
        if index < next || index >= n {
            return Err(QuantError::Corrupt {
                dtype: NAME,
                what: format!("entry {at} has index {index}, expected {next} to {}", n - 1),
            });
        }
        next = index + 1;
    }
    Ok(())
}

/// Encodes; the caller has checked shape and range.
pub(crate) fn encode(values: &[f32], rows: usize, cols: usize, keep: f32) -> Result<Vec<u8>, QuantError> {
    if keep.is_nan() {
        return Err(QuantError::Option { dtype: NAME, option: "keep", what: "is NaN".to_owned() });
    }
    let n = values.len();
    let budget = (n as f64 * f64::from(keep.clamp(0.0, MAX_KEEP))).round() as usize;
    // Everything at least as large as the (n - budget)-th smallest magnitude is kept; no key reaches u32::MAX.
    let threshold = match budget {
        0 => u32::MAX,
        _ => key_of_rank(values, cols, None, n - budget).key,
    };
    let kept = |v: f32| abs_bits(v) >= threshold;
    let counts: Vec<usize> = values.par_chunks(cols).map(|row| row.iter().filter(|v| kept(**v)).count()).collect();
    let total: usize = counts.iter().sum();
    // Ties can exceed the budget, so the sum is not bounded by it.
    let stored_total = u32::try_from(total).map_err(|_| QuantError::TooLarge {
        dtype: NAME,
        rows,
        cols,
        what: "entry count is 32 bits",
    })?;
    let base_len = n / GROUP * TILE;
    let mut out = vec![0; base_len + 4 + total * ENTRY];
    let (base, rest) = out.split_at_mut(base_len);
    let (count, list) = rest.split_at_mut(4);
    count.copy_from_slice(&stored_total.to_le_bytes());
    base.as_chunks_mut::<TILE>()
        .0
        .par_chunks_mut(cols / GROUP)
        .zip(cut(list, counts.iter().map(|count| count * ENTRY)))
        .zip(values.par_chunks(cols))
        .enumerate()
        .for_each(|(row, ((tiles, list), values))| {
            encode_row_carry(values, tiles, kept);
            let chosen = values.iter().enumerate().filter(|(_, v)| kept(**v));
            for (entry, (col, v)) in list.as_chunks_mut::<ENTRY>().0.iter_mut().zip(chosen) {
                let [i0, i1, i2, i3] = ((row * cols + col) as u32).to_le_bytes();
                let [v0, v1] = f32_to_f16(*v).to_le_bytes();
                *entry = [i0, i1, i2, i3, v0, v1];
            }
        });
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(count: u32, entries: &[(u32, u16)]) -> Vec<u8> {
        let mut out = vec![0x48, 0x38, 0x52, 0x6b, 0xa5, 0xd6];
        out.extend(count.to_le_bytes());
        for (index, value) in entries {
            out.extend(index.to_le_bytes());
            out.extend(value.to_le_bytes());
        }
        out
    }

    #[test]
    fn broken_lists_are_errors() {
        assert!(Q1s::new(&payload(2, &[(3, 0), (31, 0)]), 1, 32).is_ok());
        for (what, bytes) in [
            ("past the end", payload(1, &[(32, 0)])),
            ("descending", payload(2, &[(4, 0), (3, 0)])),
            ("twice", payload(2, &[(4, 0), (4, 0)])),
        ] {
            let error = Q1s::new(&bytes, 1, 32).unwrap_err();
            assert!(matches!(error, QuantError::Corrupt { .. }), "{what}: {error}");
        }
        for (what, bytes) in [
            ("no count", payload(0, &[])[..8].to_vec()),
            ("short list", payload(3, &[(3, 0), (31, 0)])),
            ("long list", payload(1, &[(3, 0), (31, 0)])),
            ("huge count", payload(u32::MAX, &[(3, 0)])),
        ] {
            let error = Q1s::new(&bytes, 1, 32).unwrap_err();
            assert!(matches!(error, QuantError::PayloadLength { .. }), "{what}: {error}");
        }
    }

    #[test]
    fn ties_exceed_the_budget() {
        let mut values = vec![0.5f32; 64];
        values[5] = -2.0;
        values[9] = 2.0;
        values[40] = 2.0;
        // 2 of 64 asked for, three values tie at the threshold.
        let bytes = encode(&values, 2, 32, 2.0 / 64.0).unwrap();
        let view = Q1s::new(&bytes, 2, 32).unwrap();
        let indices: Vec<usize> = view.entries().iter().map(index_of).collect();
        assert_eq!(indices, [5, 9, 40]);
        assert_eq!(view.row_entries(1).len(), 1);
        let none = encode(&values, 2, 32, 0.0).unwrap();
        assert!(Q1s::new(&none, 2, 32).unwrap().entries().is_empty());
    }
}
