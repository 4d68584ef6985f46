//! vbit and vbit_ro, docs/cmf-format.md §7.6 and §7.7.

use super::Payload;
use crate::CmfError;
use crate::dtype::GROUP;

/// Widths from `[u8; O]`, scales `[f16; O * I/32]`, for vbit_ro offsets `[u32; O + 1]`, then
/// the rows of `ceil(I * width / 8)` bytes each.
pub(super) fn check(payload: Payload<'_>, with_offsets: bool) -> Result<(), CmfError> {
    let (rows, cols) = payload.matrix();
    // Below 2^62: both factors come from 32 bits and cols is divided by 32.
    let scales = 2 * rows * (cols / GROUP);
    let offsets = if with_offsets { 4 * (rows + 1) } else { 0 };
    let fixed = rows + scales + offsets;
    let (head, _) = payload.split(fixed)?;
    let (widths, rest) = head.split_at_checked(rows as usize).unwrap_or_default();

    let mut packed = 0u64;
    for (row, &bits) in widths.iter().enumerate() {
        if !matches!(bits, 3 | 4 | 5 | 6 | 8) {
            return Err(CmfError::VbitWidth { name: payload.name.into(), row: row as u64, bits });
        }
        packed = packed.saturating_add(row_len(cols, bits));
    }
    if with_offsets {
        let table = rest.get(scales as usize..).unwrap_or_default();
        check_offsets(payload, widths, cols, table)?;
    }
    payload.check_total(fixed.saturating_add(packed))
}

fn row_len(cols: u64, bits: u8) -> u64 {
    (cols * u64::from(bits)).div_ceil(8)
}

fn check_offsets(payload: Payload<'_>, widths: &[u8], cols: u64, table: &[u8]) -> Result<(), CmfError> {
    let (table, _) = table.as_chunks::<4>();
    let mut offsets = table.iter().map(|raw| u32::from_le_bytes(*raw));
    let mut start = offsets.next().unwrap_or(0);
    if start != 0 {
        return Err(CmfError::VbitFirstOffset { name: payload.name.into(), found: start });
    }
    for (row, (end, &bits)) in offsets.zip(widths).enumerate() {
        let expected = row_len(cols, bits);
        if end.checked_sub(start).map(u64::from) != Some(expected) {
            return Err(CmfError::VbitRowSpan { name: payload.name.into(), row: row as u64, expected });
        }
        start = end;
    }
    Ok(())
}
