//! q1t, docs/cmf-format.md §7.10.

use super::Payload;
use crate::CmfError;
use crate::dtype::GROUP;

/// f16 scale and seven code bytes.
const TILE: usize = 9;

/// Tiles, row pointers `[u32; O + 1]`, entries `(u16 col, f16 value)` by row.
pub(super) fn check(payload: Payload<'_>) -> Result<(), CmfError> {
    let (rows, cols) = payload.matrix();
    let tiles_per_row = cols / GROUP;
    // Below 2^63: rows has 32 bits, tiles_per_row at most 2048.
    let base_len = rows * tiles_per_row * TILE as u64;
    let fixed = base_len + 4 * (rows + 1);
    let (head, entries) = payload.split(fixed)?;
    let (base, row_ptr) = head.split_at_checked(base_len as usize).unwrap_or_default();
    let (row_ptr, _) = row_ptr.as_chunks::<4>();

    let total = check_row_ptr(payload, row_ptr)?;
    payload.check_total(fixed.saturating_add(4 * u64::from(total)))?;
    let (tiles, _) = base.as_chunks::<TILE>();
    check_codes(payload, tiles)?;
    check_entries(payload, tiles, tiles_per_row as usize, row_ptr, entries)
}

/// Returns the number of entries.
fn check_row_ptr(payload: Payload<'_>, row_ptr: &[[u8; 4]]) -> Result<u32, CmfError> {
    let mut pointers = row_ptr.iter().map(|raw| u32::from_le_bytes(*raw));
    let mut before = pointers.next().unwrap_or(0);
    if before != 0 {
        return Err(CmfError::Q1tFirstRowPtr { name: payload.name.into(), found: before });
    }
    for (row, next) in pointers.enumerate() {
        if next < before {
            return Err(CmfError::Q1tRowPtrOrder { name: payload.name.into(), row: row as u64 });
        }
        before = next;
    }
    Ok(before)
}

fn check_codes(payload: Payload<'_>, tiles: &[[u8; TILE]]) -> Result<(), CmfError> {
    for (tile, bytes) in tiles.iter().enumerate() {
        let [_, _, codes @ .., last] = *bytes;
        // One comparison for the common case: this loop reads the whole payload.
        if codes.iter().all(|&code| code <= 242) && last <= 8 {
            continue;
        }
        let name = payload.name.into();
        let tile = tile as u64;
        return Err(match codes.into_iter().find(|&code| code > 242) {
            Some(found) => CmfError::Q1tCode { name, tile, found },
            None => CmfError::Q1tLastCode { name, tile, found: last },
        });
    }
    Ok(())
}

fn check_entries(
    payload: Payload<'_>,
    tiles: &[[u8; TILE]],
    tiles_per_row: usize,
    row_ptr: &[[u8; 4]],
    entries: &[u8],
) -> Result<(), CmfError> {
    let (rows, cols) = payload.matrix();
    debug_assert_eq!(rows as usize + 1, row_ptr.len());
    let mut entries = entries.as_chunks::<4>().0.iter();
    for (row, pair) in row_ptr.windows(2).enumerate() {
        let &[start, end] = pair else { continue };
        let count = u32::from_le_bytes(end).saturating_sub(u32::from_le_bytes(start));
        let tiles = tiles.get(row * tiles_per_row..).unwrap_or_default();
        let mut before = None;
        for [lo, hi, _, _] in entries.by_ref().take(count as usize) {
            let col = u16::from_le_bytes([*lo, *hi]);
            let name = || payload.name.to_owned();
            if u64::from(col) >= cols {
                return Err(CmfError::Q1tColumnRange { name: name(), row: row as u64, col, cols: cols as u32 });
            }
            if before.is_some_and(|before| before >= col) {
                return Err(CmfError::Q1tColumnOrder { name: name(), row: row as u64 });
            }
            before = Some(col);
            if base_code(tiles, col) != 0 {
                return Err(CmfError::Q1tBaseCode { name: name(), row: row as u64, col });
            }
        }
    }
    Ok(())
}

/// Base-3 digit of a column; `tiles` starts at the row.
fn base_code(tiles: &[[u8; TILE]], col: u16) -> u8 {
    let (tile, k) = (usize::from(col / 32), usize::from(col % 32));
    let byte = tiles.get(tile).and_then(|tile| tile.get(2 + k / 5)).copied().unwrap_or(0);
    let power = [1, 3, 9, 27, 81].get(k % 5).copied().unwrap_or(1);
    byte / power % 3
}
