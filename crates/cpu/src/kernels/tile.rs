//! Register tiles of f32 dot products: 4 weight rows by 1 to 3 inputs, generic over the vector type.
//!
//! Every output is the sum of eight lanes, each a chain over every eighth column, added in a fixed tree, then the
//! remaining columns: the same order whatever the tile, so that a result does not depend on the batch.

/// Lanes of the accumulators.
pub(super) const LANES: usize = 8;

/// Eight f32 lanes of one instruction set.
pub(super) trait Lanes: Copy {
    /// All lanes 0.
    fn zero() -> Self;
    /// The lanes in memory.
    fn load(source: &[f32; LANES]) -> Self;
    /// `self + a * b`.
    fn add_product(self, a: Self, b: Self) -> Self;
    /// All lanes `value`.
    fn splat(value: f32) -> Self;
    /// Writes the lanes to memory.
    fn store(self, target: &mut [f32; LANES]);
    /// `self * b`.
    fn times(self, b: Self) -> Self;
    /// The lanes as an array.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        self.store(&mut out);
        out
    }
    /// `a * b + c` of single values, rounded as the lanes are.
    fn scalar_add_product(c: f32, a: f32, b: f32) -> f32;
}

#[inline(always)]
fn tile<V: Lanes, const R: usize, const T: usize>(w: [&[f32]; R], x: [&[f32]; T]) -> [[f32; T]; R] {
    let cols = x[0].len();
    let whole = cols / LANES;
    let w8 = w.map(|w| &w.as_chunks::<LANES>().0[..whole]);
    let x8 = x.map(|x| &x.as_chunks::<LANES>().0[..whole]);
    let mut sums = [[V::zero(); T]; R];
    for i in 0..whole {
        let xs: [V; T] = std::array::from_fn(|t| V::load(&x8[t][i]));
        for r in 0..R {
            let ws = V::load(&w8[r][i]);
            for t in 0..T {
                sums[r][t] = sums[r][t].add_product(ws, xs[t]);
            }
        }
    }
    std::array::from_fn(|r| {
        std::array::from_fn(|t| {
            let s = sums[r][t].to_array();
            let sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
            (whole * LANES..cols).fold(sum, |sum, i| V::scalar_add_product(sum, w[r][i], x[t][i]))
        })
    })
}

/// Row `index` of a row-major matrix.
#[inline(always)]
fn row(matrix: &[f32], cols: usize, index: usize) -> &[f32] {
    &matrix[index * cols..(index + 1) * cols]
}

#[inline(always)]
fn tile_into<V: Lanes, const R: usize, const T: usize>(
    weights: &[f32],
    x: &[f32],
    cols: usize,
    (first_row, first_input): (usize, usize),
    out: &mut [f32],
) {
    let rows = weights.len() / cols;
    let sums = tile::<V, R, T>(
        std::array::from_fn(|r| row(weights, cols, first_row + r)),
        std::array::from_fn(|t| row(x, cols, first_input + t)),
    );
    for t in 0..T {
        for r in 0..R {
            out[(first_input + t) * rows + first_row + r] = sums[r][t];
        }
    }
}

#[inline(always)]
fn rows_times<V: Lanes, const R: usize>(weights: &[f32], x: &[f32], cols: usize, first_row: usize, out: &mut [f32]) {
    let n = x.len() / cols;
    let mut t = 0;
    while t + 3 <= n {
        tile_into::<V, R, 3>(weights, x, cols, (first_row, t), out);
        t += 3;
    }
    match n - t {
        2 => tile_into::<V, R, 2>(weights, x, cols, (first_row, t), out),
        1 => tile_into::<V, R, 1>(weights, x, cols, (first_row, t), out),
        _ => {}
    }
}

/// [`super::Isa::dot_rows`] on `V`.
#[inline(always)]
pub(super) fn dot_rows<V: Lanes>(weights: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    let rows = weights.len() / cols;
    let mut first = 0;
    // One input alone makes one chain per row: more rows keep the multipliers busy.
    while x.len() == cols && first + 8 <= rows {
        tile_into::<V, 8, 1>(weights, x, cols, (first, 0), out);
        first += 8;
    }
    while first + 4 <= rows {
        rows_times::<V, 4>(weights, x, cols, first, out);
        first += 4;
    }
    while first < rows {
        rows_times::<V, 1>(weights, x, cols, first, out);
        first += 1;
    }
}

#[cfg(test)]
mod tests {
    use crate::Isa;

    fn values(n: usize, salt: usize) -> Vec<f32> {
        (0..n).map(|i| (((i * 7 + salt * 13) % 31) as f32 - 15.0) / 8.0).collect()
    }

    #[test]
    fn every_variant_equals_plain_sums() {
        for isa in Isa::available() {
            for (rows, cols, n) in [(1, 1, 1), (4, 8, 2), (7, 33, 3), (9, 70, 5), (5, 64, 1)] {
                let (w, x) = (values(rows * cols, 1), values(n * cols, 2));
                let mut out = vec![0.0; n * rows];
                isa.dot_rows(&w, &x, cols, &mut out);
                for t in 0..n {
                    for r in 0..rows {
                        let plain: f64 =
                            (0..cols).map(|i| f64::from(w[r * cols + i]) * f64::from(x[t * cols + i])).sum();
                        // All products and sums are exact in f32 here (multiples of 1/64, small).
                        assert_eq!(f64::from(out[t * rows + r]), plain, "{isa:?} {rows}x{cols}, {n} inputs");
                    }
                }
            }
        }
    }

    #[test]
    fn a_value_does_not_depend_on_its_neighbours() {
        for isa in Isa::available() {
            let cols = 77;
            let w: Vec<f32> = (0..6 * cols).map(|i| ((i * 2_654_435_761) as u32 as f32) / 4e9 - 0.5).collect();
            let x: Vec<f32> = (0..3 * cols).map(|i| ((i * 40_503 + 7) as u32 as f32).sin()).collect();
            let mut together = vec![0.0; 18];
            isa.dot_rows(&w, &x, cols, &mut together);
            for t in 0..3 {
                for r in 0..6 {
                    let alone = isa.dot(&w[r * cols..(r + 1) * cols], &x[t * cols..(t + 1) * cols]);
                    assert_eq!(alone.to_bits(), together[t * 6 + r].to_bits());
                }
            }
        }
    }
}
