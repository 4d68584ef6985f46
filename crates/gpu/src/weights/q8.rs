//! int8 rows `[rows, padded(cols)]` and f32 row scales.

use cortiq_quant::{MatrixView, f16_to_f32};
use rayon::prelude::*;

use super::{Planes, RowRef};
use crate::slots::padded;

fn scale_of(view: &MatrixView<'_>, row: usize) -> f32 {
    let half = match view {
        MatrixView::Q8Row(view) => view.scales()[row],
        MatrixView::Q8_2f(view) => view.row_scales()[row],
        _ => [0; 2],
    };
    f16_to_f32(u16::from_le_bytes(half))
}

fn codes_of<'a>(view: &MatrixView<'a>, row: usize) -> &'a [i8] {
    let (codes, cols) = match view {
        MatrixView::Q8Row(view) => (view.codes(), view.cols()),
        MatrixView::Q8_2f(view) => (view.codes(), view.cols()),
        _ => return &[],
    };
    &codes[row * cols..(row + 1) * cols]
}

/// Codes and row scales.
pub(super) fn pack(rows: &[RowRef<'_>], cols: usize) -> Planes {
    let width = padded(cols) / 4;
    let mut codes = vec![0u32; rows.len() * width];
    codes.par_chunks_mut(width).zip(rows).for_each(|(out, row)| {
        for (word, four) in out.iter_mut().zip(codes_of(row.view, row.row).chunks(4)) {
            let mut bytes = [0u8; 4];
            bytes.iter_mut().zip(four).for_each(|(byte, &code)| *byte = code.cast_unsigned());
            *word = u32::from_le_bytes(bytes);
        }
    });
    let scales = rows.iter().map(|row| scale_of(row.view, row.row).to_bits()).collect();
    vec![codes, scales]
}

/// Column factors, `[views, padded(cols)]`.
pub(super) fn fields(views: &[&MatrixView<'_>], cols: usize) -> Vec<f32> {
    let mut fields = vec![0.0; views.len() * padded(cols)];
    for (out, view) in fields.chunks_mut(padded(cols)).zip(views) {
        if let MatrixView::Q8_2f(view) = view {
            let halves = view.col_scales().iter().map(|half| f16_to_f32(u16::from_le_bytes(*half)));
            out.iter_mut().zip(halves).for_each(|(out, value)| *out = value);
        }
    }
    fields
}
