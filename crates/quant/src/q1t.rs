//! q1t: ternary tiles and f16 outliers by row (docs/cmf-format.md §7.10); the encoder is in `q1t_encode`.
//!
//! `[9-byte tiles: f16 s, 7 code bytes][u32 row_ptr: rows+1][entries: u16 col, f16 value]`. A code byte holds five
//! base-3 digits, lowest first: 0 -> 0, 1 -> +s, 2 -> -s. Entries overwrite the base, whose code is 0 below them.

use crate::common::{GROUP, check_length, decode_run, element_count, f16_at, length_error, run_start, shape_methods};
use crate::error::QuantError;

pub(crate) const NAME: &str = "q1t";

/// Bytes of a tile: scale and codes.
pub(crate) const TILE: usize = 9;

/// Bytes of an entry: column and value.
pub(crate) const ENTRY: usize = 4;

/// Base-3 digits in a code byte.
pub(crate) const DIGITS: usize = 5;

/// Powers of three: weights of the digits in a code byte.
pub(crate) const POW3: [u8; DIGITS] = [1, 3, 9, 27, 81];

/// Largest width: columns are 16 bits.
pub(crate) const MAX_COLS: usize = 65536;

/// The five codes of each byte as 0, 1, -1, padded to eight bytes.
const CODES: [[i8; 8]; 256] = {
    let mut table = [[0i8; 8]; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut k = 0;
        while k < DIGITS {
            let digit = byte / POW3[k] as usize % 3;
            table[byte][k] = [0, 1, -1][digit];
            k += 1;
        }
        byte += 1;
    }
    table
};

/// The codes of a tile's seven code bytes as 0, 1 and -1.
#[inline(always)]
pub fn ternary_codes(bytes: &[u8; 7]) -> [i8; GROUP] {
    // Eight bytes are written at every fifth place; each write covers the padding of the one before.
    let mut wide = [0i8; 6 * DIGITS + 8];
    for (j, byte) in bytes.iter().enumerate() {
        if let Some(slot) = wide.get_mut(j * DIGITS..).and_then(|rest| rest.first_chunk_mut::<8>()) {
            *slot = CODES[usize::from(*byte)];
        }
    }
    let mut codes = [0; GROUP];
    codes.copy_from_slice(&wide[..GROUP]);
    codes
}

/// Base-3 digit of element `k` of a tile: 0, 1 or 2.
fn digit(tile: &[u8; TILE], k: usize) -> u8 {
    tile[2 + k / DIGITS] / POW3[k % DIGITS] % 3
}

/// Checked q1t matrix.
#[derive(Debug, Clone, Copy)]
pub struct Q1t<'a> {
    tiles: &'a [[u8; TILE]],
    row_ptr: &'a [[u8; 4]],
    entries: &'a [[u8; ENTRY]],
    rows: usize,
    cols: usize,
}

/// Column of an entry.
#[inline(always)]
fn column_of(entry: &[u8; ENTRY]) -> usize {
    usize::from(u16::from_le_bytes([entry[0], entry[1]]))
}

impl<'a> Q1t<'a> {
    shape_methods!();

    /// Checks `payload` as a `[rows, cols]` matrix: lengths, the row table, columns in range and strictly ascending
    /// in a row, and base code 0 under every entry (kernels add entries to the base, §7.10).
    ///
    /// # Errors
    /// [`QuantError::Empty`], [`QuantError::TooLarge`], [`QuantError::Shape`] unless `cols % 32 == 0` and
    /// `cols <= 65536`, [`QuantError::PayloadLength`], [`QuantError::Corrupt`].
    pub fn new(payload: &'a [u8], rows: usize, cols: usize) -> Result<Self, QuantError> {
        let n = element_count(NAME, rows, cols)?;
        if !cols.is_multiple_of(GROUP) || cols > MAX_COLS {
            return Err(QuantError::Shape {
                dtype: NAME,
                rows,
                cols,
                needs: "columns must be a multiple of 32 and at most 65536",
            });
        }
        let base_len = n / GROUP * TILE;
        let least = base_len + 4 * (rows + 1);
        if payload.len() < least {
            return Err(length_error(NAME, payload, rows, cols, least));
        }
        let (head, entries) = payload.split_at(least);
        let (tiles, row_ptr) = head.split_at(base_len);
        let view = Self {
            tiles: tiles.as_chunks().0,
            row_ptr: row_ptr.as_chunks().0,
            entries: entries.as_chunks().0,
            rows,
            cols,
        };
        let expected = (view.row_start(rows)).checked_mul(ENTRY).and_then(|len| len.checked_add(least));
        check_length(NAME, payload, rows, cols, expected.unwrap_or(usize::MAX))?;
        view.check_rows()?;
        Ok(view)
    }

    fn check_rows(&self) -> Result<(), QuantError> {
        let corrupt = |what| Err(QuantError::Corrupt { dtype: NAME, what });
        if self.row_start(0) != 0 {
            return corrupt(format!("row table starts at {}, not 0", self.row_start(0)));
        }
        for (row, tiles) in self.tiles.chunks_exact(self.cols / GROUP).enumerate() {
            let (start, end) = (self.row_start(row), self.row_start(row + 1));
            let Some(entries) = self.entries.get(start..end) else {
                return corrupt(format!("row {row} has entries {start}..{end} of {}", self.entries.len()));
            };
            let mut next = 0;
            for entry in entries {
                let col = column_of(entry);
                if col < next || col >= self.cols {
                    return corrupt(format!("row {row} has an entry at column {col}, expected {next} or later"));
                }
                if digit(&tiles[col / GROUP], col % GROUP) != 0 {
                    return corrupt(format!("row {row} has a base code under the entry at column {col}"));
                }
                next = col + 1;
            }
        }
        Ok(())
    }

    /// Index of the first entry of row `row`; `row == rows` gives the number of entries.
    fn row_start(&self, row: usize) -> usize {
        u32::from_le_bytes(self.row_ptr[row]) as usize
    }

    /// Base tiles `[rows, cols / 32]`: two bytes f16 scale, seven bytes codes (see [`ternary_codes`]).
    pub fn tiles(&self) -> &'a [[u8; TILE]] {
        self.tiles
    }

    /// Row table, `rows + 1` little-endian u32: row r has entries `row_ptr[r]..row_ptr[r + 1]`.
    pub fn row_ptr(&self) -> &'a [[u8; 4]] {
        self.row_ptr
    }

    /// Entries of all rows: two bytes column, two bytes f16 value, little-endian.
    pub fn entries(&self) -> &'a [[u8; ENTRY]] {
        self.entries
    }

    /// Entries of row `row`, ascending by column. Panics like slice indexing when `row >= rows()`.
    pub fn row_entries(&self, row: usize) -> &'a [[u8; ENTRY]] {
        &self.entries[self.row_start(row)..self.row_start(row + 1)]
    }

    /// Decodes `out.len()` elements of a row from column `32 * first_group` on.
    ///
    /// # Panics
    /// Like slice indexing: when the run is not inside the row.
    pub fn decode_groups(&self, row: usize, first_group: usize, out: &mut [f32]) {
        let start = run_start(self.rows, self.cols, row, first_group, out.len());
        decode_run(start, out, |group, out| {
            let [s0, s1, codes @ ..] = &self.tiles[group];
            let s = f16_at([*s0, *s1]);
            for (out, code) in out.iter_mut().zip(ternary_codes(codes)) {
                *out = f32::from(code) * s;
            }
        });
        let first = first_group * GROUP;
        let entries = self.row_entries(row);
        for entry in &entries[entries.partition_point(|entry| column_of(entry) < first)..] {
            let Some(out) = out.get_mut(column_of(entry) - first) else { break };
            *out = f16_at([entry[2], entry[3]]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_equals_the_formula() {
        for byte in 0..=255u8 {
            let codes = ternary_codes(&[byte; 7]);
            for (k, code) in codes.iter().enumerate() {
                let want = [0, 1, -1][usize::from(byte / POW3[k % DIGITS] % 3)];
                assert_eq!(*code, want, "{byte} {k}");
            }
        }
    }

    #[test]
    fn broken_overlays_are_errors() {
        // [2, 32]: base codes all zero but element 7 of row 1 (byte 1 of its codes, digit 2).
        let base = |out: &mut Vec<u8>| {
            out.extend([0x00, 0x34, 0, 0, 0, 0, 0, 0, 0]);
            out.extend([0x00, 0x34, 0, 9, 0, 0, 0, 0, 0]);
        };
        let build = |row_ptr: [u32; 3], cols: &[u16]| {
            let mut out = Vec::new();
            base(&mut out);
            row_ptr.iter().for_each(|p| out.extend(p.to_le_bytes()));
            cols.iter().for_each(|c| {
                out.extend(c.to_le_bytes());
                out.extend([0x00, 0x3C]);
            });
            out
        };
        let good = build([0, 2, 3], &[0, 31, 8]);
        let view = Q1t::new(&good, 2, 32).unwrap();
        let mut row = [0.0; 32];
        view.decode_row(1, &mut row);
        assert_eq!((row[7], row[8], row[9]), (0.25, 1.0, 0.0));
        for (what, bytes) in [
            ("table start", build([1, 2, 3], &[0, 31, 8])),
            ("table order", build([0, 4, 3], &[0, 31, 8])),
            ("column range", build([0, 2, 3], &[0, 32, 8])),
            ("column order", build([0, 2, 3], &[31, 0, 8])),
            ("column twice", build([0, 2, 3], &[5, 5, 8])),
            ("code under entry", build([0, 2, 3], &[0, 31, 7])),
        ] {
            let error = Q1t::new(&bytes, 2, 32).unwrap_err();
            assert!(matches!(error, QuantError::Corrupt { .. }), "{what}: {error}");
        }
        for (what, bytes) in [
            ("no table", good[..20].to_vec()),
            ("short", good[..good.len() - 1].to_vec()),
            ("long", [good.as_slice(), &[0]].concat()),
            ("count", build([0, 2, u32::MAX], &[0, 31, 8])),
        ] {
            let error = Q1t::new(&bytes, 2, 32).unwrap_err();
            assert!(matches!(error, QuantError::PayloadLength { .. }), "{what}: {error}");
        }
    }
}
