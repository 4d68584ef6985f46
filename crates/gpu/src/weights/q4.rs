//! Nibbles of a group in four words and f16 scales.
//!
//! Byte `k` of word `j` holds element `4 j + k` low and element `16 + 4 j + k` high, so that a mask and a shift give
//! words that match four int8 activations each.

use cortiq_quant::MatrixView;
use rayon::prelude::*;

use super::{Planes, RowRef, pairs};

/// The 16 nibble bytes of a group (element `2 k` low, `2 k + 1` high) and its scale.
fn group(view: &MatrixView<'_>, index: usize) -> ([u8; 16], [u8; 2]) {
    match view {
        MatrixView::Q4Block(view) => (view.codes()[index], view.scales()[index]),
        MatrixView::Q4Tiled(view) => {
            let tile = &view.tiles()[index];
            let mut codes = [0; 16];
            codes.copy_from_slice(&tile[2..]);
            (codes, [tile[0], tile[1]])
        }
        _ => ([0; 16], [0; 2]),
    }
}

/// Spreads the eight nibbles of four bytes to eight bytes, lowest first.
fn spread(four: [u8; 4]) -> u64 {
    let x = u64::from(u32::from_le_bytes(four));
    let x = (x | x << 16) & 0x0000_ffff_0000_ffff;
    let x = (x | x << 8) & 0x00ff_00ff_00ff_00ff;
    (x | x << 4) & 0x0f0f_0f0f_0f0f_0f0f
}

fn words(codes: [u8; 16]) -> [u32; 4] {
    let quarter = |i: usize| spread([codes[4 * i], codes[4 * i + 1], codes[4 * i + 2], codes[4 * i + 3]]);
    let join = |low: u64, high: u64| low | high << 4;
    let (a, b) = (join(quarter(0), quarter(2)), join(quarter(1), quarter(3)));
    [a as u32, (a >> 32) as u32, b as u32, (b >> 32) as u32]
}

/// Codes `[rows, groups, 4]` and scales.
pub(super) fn pack(rows: &[RowRef<'_>], cols: usize) -> Planes {
    let groups = cols / 32;
    let mut codes = vec![0u32; rows.len() * groups * 4];
    let mut scales = vec![[0u8; 2]; rows.len() * groups];
    codes.par_chunks_mut(groups * 4).zip(scales.par_chunks_mut(groups)).zip(rows).for_each(|((codes, scales), row)| {
        for (i, (out, scale)) in codes.chunks_mut(4).zip(scales).enumerate() {
            let (nibbles, half) = group(row.view, row.row * groups + i);
            out.copy_from_slice(&words(nibbles));
            *scale = half;
        }
    });
    vec![codes, pairs(&scales)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nibbles_land_where_the_shader_looks() {
        // Element e has the value e % 16.
        let codes = std::array::from_fn(|k| (((2 * k) % 16) | (((2 * k + 1) % 16) << 4)) as u8);
        let words = words(codes);
        for element in 0..32 {
            let (j, k, high) = (element % 16 / 4, element % 4, element / 16);
            let nibble = words[j] >> (8 * k + 4 * high) & 15;
            assert_eq!(nibble as usize, element % 16, "element {element}");
        }
    }
}
