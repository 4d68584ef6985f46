//! Signs of a group in one word and f16 scales.
//!
//! Bit `8 k + j` is element `4 j + k`: a shift by `j` and a mask give the bits of four neighbouring elements in four
//! bytes.

use cortiq_quant::{MatrixView, Q1};
use rayon::prelude::*;

use super::{Planes, RowRef, overlay, pairs};

/// Moves bit `e` of a little-endian mask to bit `8 (e % 4) + e / 4`.
pub(super) fn transpose(bits: u32) -> u32 {
    (0..32).fold(0, |out, e| out | (bits >> e & 1) << (8 * (e % 4) + e / 4))
}

fn base<'a>(view: &MatrixView<'a>) -> Option<Q1<'a>> {
    match view {
        MatrixView::Q1(view) => Some(*view),
        MatrixView::Q1s(view) => Some(view.base()),
        _ => None,
    }
}

/// Masks `[rows, groups]` and scales.
pub(super) fn pack(rows: &[RowRef<'_>], cols: usize) -> Planes {
    let groups = cols / 32;
    let mut masks = vec![0u32; rows.len() * groups];
    let mut scales = vec![[0u8; 2]; rows.len() * groups];
    masks.par_chunks_mut(groups).zip(scales.par_chunks_mut(groups)).zip(rows).for_each(|((masks, scales), row)| {
        let Some(view) = base(row.view) else { return };
        let tiles = &view.tiles()[row.row * groups..(row.row + 1) * groups];
        for ((mask, scale), tile) in masks.iter_mut().zip(scales).zip(tiles) {
            *mask = transpose(u32::from_le_bytes([tile[2], tile[3], tile[4], tile[5]]));
            *scale = [tile[0], tile[1]];
        }
    });
    vec![masks, pairs(&scales)]
}

/// The same, then the overlay.
pub(super) fn pack_overlay(rows: &[RowRef<'_>], cols: usize) -> Planes {
    let mut planes = pack(rows, cols);
    planes.extend(overlay::pack(rows.iter().map(|row| corrections(row, cols))));
    planes
}

/// What the entries of a row add to its base.
fn corrections(row: &RowRef<'_>, cols: usize) -> Vec<(u32, f32)> {
    let MatrixView::Q1s(view) = row.view else { return Vec::new() };
    let mut base = vec![0.0; cols];
    let mut exact = vec![0.0; cols];
    view.base().decode_groups(row.row, 0, &mut base);
    row.decode(&mut exact);
    let column = |entry: &[u8; 6]| {
        let flat = u32::from_le_bytes([entry[0], entry[1], entry[2], entry[3]]) as usize;
        flat % cols
    };
    view.row_entries(row.row).iter().map(column).map(|col| (col as u32, exact[col] - base[col])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_moves_to_its_place() {
        for element in 0..32u32 {
            assert_eq!(transpose(1 << element), 1 << (8 * (element % 4) + element / 4));
        }
    }
}
