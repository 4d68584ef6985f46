//! Two masks per group, plus and minus, in the order of `q1`; f16 scales; outliers.

use cortiq_quant::{MatrixView, f16_to_f32, ternary_codes};
use rayon::prelude::*;

use super::{Planes, RowRef, overlay, pairs, q1::transpose};

/// Masks `[rows, groups, 2]`, scales, overlay.
pub(super) fn pack(rows: &[RowRef<'_>], cols: usize) -> Planes {
    let groups = cols / 32;
    let mut masks = vec![0u32; rows.len() * groups * 2];
    let mut scales = vec![[0u8; 2]; rows.len() * groups];
    masks.par_chunks_mut(groups * 2).zip(scales.par_chunks_mut(groups)).zip(rows).for_each(|((masks, scales), row)| {
        let MatrixView::Q1t(view) = row.view else { return };
        let tiles = &view.tiles()[row.row * groups..(row.row + 1) * groups];
        for ((two, scale), tile) in masks.chunks_mut(2).zip(scales).zip(tiles) {
            let mut bytes = [0; 7];
            bytes.copy_from_slice(&tile[2..]);
            let codes = ternary_codes(&bytes);
            let mask = |sign: i8| (0..32).fold(0u32, |mask, e| mask | u32::from(codes[e] == sign) << e);
            two.copy_from_slice(&[transpose(mask(1)), transpose(mask(-1))]);
            *scale = [tile[0], tile[1]];
        }
    });
    let mut planes = vec![masks, pairs(&scales)];
    planes.extend(overlay::pack(rows.iter().map(outliers)));
    planes
}

/// The base is zero below an entry, so that the entries' values are what they add.
fn outliers(row: &RowRef<'_>) -> Vec<(u32, f32)> {
    let MatrixView::Q1t(view) = row.view else { return Vec::new() };
    let entry = |entry: &[u8; 4]| {
        let value = f16_to_f32(u16::from_le_bytes([entry[2], entry[3]]));
        (u32::from(u16::from_le_bytes([entry[0], entry[1]])), value)
    };
    view.row_entries(row.row).iter().map(entry).collect()
}
