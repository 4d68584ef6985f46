//! f32, f16 and bf16 rows, padded with zeros to whole groups.

use cortiq_quant::MatrixView;
use rayon::prelude::*;

use super::{Planes, RowRef, pair};
use crate::slots::padded;

/// `[rows, padded(cols)]` f32 of any matrix.
pub(super) fn pack_f32(rows: &[RowRef<'_>], cols: usize) -> Planes {
    let width = padded(cols);
    let mut plane = vec![0u32; rows.len() * width];
    plane.par_chunks_mut(width).zip(rows).for_each(|(out, row)| {
        let mut values = vec![0.0; width];
        row.decode(&mut values);
        out.iter_mut().zip(values).for_each(|(word, value)| *word = value.to_bits());
    });
    vec![plane]
}

/// `[rows, padded(cols) / 2]` pairs of f16.
pub(super) fn pack_f16(rows: &[RowRef<'_>], cols: usize) -> Planes {
    pack_halves(rows, cols, |view| match view {
        MatrixView::F16(view) => view.data(),
        _ => &[],
    })
}

/// `[rows, padded(cols) / 2]` pairs of bf16.
pub(super) fn pack_bf16(rows: &[RowRef<'_>], cols: usize) -> Planes {
    pack_halves(rows, cols, |view| match view {
        MatrixView::Bf16(view) => view.data(),
        _ => &[],
    })
}

fn pack_halves<'a>(rows: &[RowRef<'a>], cols: usize, data: impl Fn(&MatrixView<'a>) -> &'a [[u8; 2]] + Sync) -> Planes {
    let width = padded(cols) / 2;
    let mut plane = vec![0u32; rows.len() * width];
    plane.par_chunks_mut(width).zip(rows).for_each(|(out, row)| {
        let halves = &data(row.view)[row.row * cols..(row.row + 1) * cols];
        for (word, two) in out.iter_mut().zip(halves.chunks(2)) {
            *word = pair(two[0], two.get(1).copied().unwrap_or_default());
        }
    });
    vec![plane]
}
