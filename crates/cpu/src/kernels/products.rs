//! Matrix products with a row-major right side, in register tiles of up to 6 rows by 16 columns.
//!
//! Bytes read: the right side once per 6 rows of the left, a column strip of it at a time, so that the strip
//! (64 bytes per row) stays in the L1 cache.

use super::tile::{LANES, Lanes};

/// Rows of a register tile.
const TILE_ROWS: usize = 6;

/// Left side `[rows, inner]`, element `(r, i)` at `r * row_step + i * step`: row-major or transposed.
#[derive(Clone, Copy)]
pub(crate) struct Left<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) rows: usize,
    pub(crate) inner: usize,
    pub(crate) row_step: usize,
    pub(crate) step: usize,
}

impl<'a> Left<'a> {
    /// A row-major matrix whose rows start `row_step` apart.
    pub(crate) fn rows(values: &'a [f32], rows: usize, inner: usize, row_step: usize) -> Self {
        Self { values, rows, inner, row_step, step: 1 }
    }

    /// The transpose of a row-major `[inner, rows]` matrix.
    pub(crate) fn transposed(values: &'a [f32], rows: usize, inner: usize) -> Self {
        Self { values, rows, inner, row_step: 1, step: rows }
    }
}

/// Right side `[left.inner, cols]`, rows `row_step` apart.
#[derive(Clone, Copy)]
pub(crate) struct Right<'a> {
    pub(crate) values: &'a [f32],
    pub(crate) cols: usize,
    pub(crate) row_step: usize,
}

/// Length that a strided matrix needs.
fn extent(rows: usize, row_step: usize, cols: usize, step: usize) -> usize {
    if rows == 0 || cols == 0 { 0 } else { (rows - 1) * row_step + (cols - 1) * step + 1 }
}

/// See [`super::Isa::add_products`].
///
/// # Panics
/// When a matrix is longer than its slice.
#[inline(always)]
pub(super) fn add_products<V: Lanes>(left: Left<'_>, right: Right<'_>, out: &mut [f32], stride: usize) {
    assert!(extent(left.rows, left.row_step, left.inner, left.step) <= left.values.len(), "left side");
    assert!(extent(left.inner, right.row_step, right.cols, 1) <= right.values.len(), "right side");
    assert!(extent(left.rows, stride, right.cols, 1) <= out.len(), "product");
    let mut col = 0;
    while col + 2 * LANES <= right.cols {
        strip::<V, 2>(left, right, out, stride, col);
        col += 2 * LANES;
    }
    if col + LANES <= right.cols {
        strip::<V, 1>(left, right, out, stride, col);
        col += LANES;
    }
    for col in col..right.cols {
        for row in 0..left.rows {
            let y = &mut out[row * stride + col];
            for i in 0..left.inner {
                let a = left.values[row * left.row_step + i * left.step];
                *y = V::scalar_add_product(*y, a, right.values[i * right.row_step + col]);
            }
        }
    }
}

/// `N` vectors of columns from `col` on, all rows.
#[inline(always)]
fn strip<V: Lanes, const N: usize>(left: Left<'_>, right: Right<'_>, out: &mut [f32], stride: usize, col: usize) {
    let mut row = 0;
    while row + TILE_ROWS <= left.rows {
        tile::<V, TILE_ROWS, N>(left, right, out, stride, (row, col));
        row += TILE_ROWS;
    }
    match left.rows - row {
        5 => tile::<V, 5, N>(left, right, out, stride, (row, col)),
        4 => tile::<V, 4, N>(left, right, out, stride, (row, col)),
        3 => tile::<V, 3, N>(left, right, out, stride, (row, col)),
        2 => tile::<V, 2, N>(left, right, out, stride, (row, col)),
        1 => tile::<V, 1, N>(left, right, out, stride, (row, col)),
        _ => {}
    }
}

#[inline(always)]
fn tile<V: Lanes, const R: usize, const N: usize>(
    left: Left<'_>,
    right: Right<'_>,
    out: &mut [f32],
    stride: usize,
    (row, col): (usize, usize),
) {
    let mut sums: [[V; N]; R] = std::array::from_fn(|r| {
        let y = &out[(row + r) * stride + col..][..N * LANES];
        std::array::from_fn(|n| V::load(&y.as_chunks::<LANES>().0[n]))
    });
    let (a, b) = (left.values.as_ptr(), right.values.as_ptr());
    for i in 0..left.inner {
        let from = i * right.row_step + col;
        // SAFETY: `add_products` checked that row `i` of the right side has `right.cols` elements, of which its
        // callers take N vectors from `col` on.
        let xs: [V; N] = std::array::from_fn(|n| V::load(unsafe { &*b.add(from + n * LANES).cast() }));
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: `add_products` checked the extent of the left side; `row + r < left.rows`, `i < left.inner`.
            let a = V::splat(unsafe { *a.add((row + r) * left.row_step + i * left.step) });
            for n in 0..N {
                sums[n] = sums[n].add_product(a, xs[n]);
            }
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let y = &mut out[(row + r) * stride + col..][..N * LANES];
        for (y, sum) in y.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
            sum.store(y);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;

    fn values(n: usize, salt: usize) -> Vec<f32> {
        (0..n).map(|i| (((i * 7 + salt * 13) % 31) as f32 - 15.0) / 8.0).collect()
    }

    #[test]
    fn products_equal_plain_sums_in_every_shape() {
        for isa in Isa::available() {
            for rows in 1..=13 {
                for (inner, cols) in [(1, 1), (5, 8), (9, 16), (3, 43), (0, 4)] {
                    let (pitch, stride) = (cols + 3, cols + 2);
                    let (a, b) = (values(rows * inner, 1), values(inner * pitch + cols, 2));
                    for left in [Left::rows(&a, rows, inner, inner), Left::transposed(&a, rows, inner)] {
                        let mut out = values(rows * stride, 3);
                        let mut expected = out.clone();
                        for r in 0..rows {
                            for c in 0..cols {
                                for i in 0..inner {
                                    let x = a[r * left.row_step + i * left.step];
                                    expected[r * stride + c] += x * b[i * pitch + c];
                                }
                            }
                        }
                        isa.add_products(left, Right { values: &b, cols, row_step: pitch }, &mut out, stride);
                        // Multiples of 1/64, small: exact in f32 in any order.
                        assert_eq!(out, expected, "{isa:?} {rows} {inner} {cols}");
                    }
                }
            }
        }
    }
}
