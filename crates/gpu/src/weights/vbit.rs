//! Rows of `b` bits: a group of 32 codes is exactly `b` words, code `k` at bit `k b`, least significant first; f16
//! scales; offset and width of each row. Codes of 8 bits are stored as int8 `code - 128`.

use cortiq_quant::MatrixView;
use rayon::prelude::*;

use super::{Planes, RowRef, pairs};

fn width_of(row: &RowRef<'_>) -> usize {
    match row.view {
        MatrixView::Vbit(view) => usize::from(view.widths()[row.row]),
        _ => 0,
    }
}

/// Repacks one row, whose codes come most significant bit first.
fn pack_row(codes: &[u8], width: usize, out: &mut [u32]) {
    for k in 0..out.len() * 32 / width {
        let code = (k * width..(k + 1) * width).fold(0u32, |code, bit| {
            let byte = codes.get(bit / 8).copied().unwrap_or_default();
            code << 1 | u32::from(byte >> (7 - bit % 8) & 1)
        });
        let code = if width == 8 { code ^ 128 } else { code };
        let (word, shift) = (k * width / 32, k * width % 32);
        out[word] |= code << shift;
        if shift + width > 32 {
            out[word + 1] |= code >> (32 - shift);
        }
    }
}

/// Codes, scales and `[rows, 2]` of offset in words and width.
pub(super) fn pack(rows: &[RowRef<'_>], cols: usize) -> Planes {
    let groups = cols / 32;
    let mut info = Vec::with_capacity(rows.len() * 2);
    let mut total = 0usize;
    for row in rows {
        let width = width_of(row);
        info.extend([total as u32, width as u32]);
        total += groups * width;
    }
    let mut codes = vec![0u32; total.max(4)];
    let mut rest = codes.as_mut_slice();
    let mut jobs = Vec::with_capacity(rows.len());
    for row in rows {
        let (mine, others) = rest.split_at_mut(groups * width_of(row));
        jobs.push((row, mine));
        rest = others;
    }
    jobs.into_par_iter().for_each(|(row, out)| {
        if let MatrixView::Vbit(view) = row.view {
            pack_row(view.row_codes(row.row), width_of(row), out);
        }
    });
    let scales: Vec<[u8; 2]> = rows
        .iter()
        .flat_map(|row| match row.view {
            MatrixView::Vbit(view) => &view.scales()[row.row * groups..(row.row + 1) * groups],
            _ => &[],
        })
        .copied()
        .collect();
    vec![codes, pairs(&scales), info]
}
