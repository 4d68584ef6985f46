//! Register tiles of f32 dot products: 4 weight rows by 1 or 2 inputs.
//!
//! Every output is the sum of eight lanes, each a chain over every eighth column, added in a fixed tree, then the
//! remaining columns: the same order whatever the tile, so that a result does not depend on the batch.

const LANES: usize = 8;

#[inline(always)]
fn mul_add<const FMA: bool>(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction `mul_add` would be a slow library call.
    if FMA { a.mul_add(b, c) } else { a * b + c }
}

#[inline(always)]
fn tile<const FMA: bool, const R: usize, const T: usize>(w: [&[f32]; R], x: [&[f32]; T]) -> [[f32; T]; R] {
    let mut sums = [[[0.0f32; LANES]; T]; R];
    let cols = x[0].len();
    let whole = cols - cols % LANES;
    let mut at = 0;
    while at < whole {
        let xs: [&[f32]; T] = x.map(|x| &x[at..at + LANES]);
        for r in 0..R {
            let ws = &w[r][at..at + LANES];
            for t in 0..T {
                for lane in 0..LANES {
                    sums[r][t][lane] = mul_add::<FMA>(ws[lane], xs[t][lane], sums[r][t][lane]);
                }
            }
        }
        at += LANES;
    }
    let mut out = [[0.0; T]; R];
    for r in 0..R {
        for t in 0..T {
            let s = &sums[r][t];
            let mut sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
            for i in whole..cols {
                sum = mul_add::<FMA>(w[r][i], x[t][i], sum);
            }
            out[r][t] = sum;
        }
    }
    out
}

#[inline(always)]
fn rows_times<const FMA: bool, const R: usize>(
    weights: &[f32],
    x: &[f32],
    cols: usize,
    row: usize,
    rows: usize,
    out: &mut [f32],
) {
    let w: [&[f32]; R] = std::array::from_fn(|r| &weights[(row + r) * cols..(row + r + 1) * cols]);
    let n = x.len() / cols;
    let mut t = 0;
    while t + 2 <= n {
        let y = tile::<FMA, R, 2>(w, [&x[t * cols..(t + 1) * cols], &x[(t + 1) * cols..(t + 2) * cols]]);
        for r in 0..R {
            out[t * rows + row + r] = y[r][0];
            out[(t + 1) * rows + row + r] = y[r][1];
        }
        t += 2;
    }
    if t < n {
        let y = tile::<FMA, R, 1>(w, [&x[t * cols..(t + 1) * cols]]);
        for r in 0..R {
            out[t * rows + row + r] = y[r][0];
        }
    }
}

#[inline(always)]
fn dot_rows<const FMA: bool>(weights: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    let rows = weights.len() / cols;
    let mut row = 0;
    while row + 4 <= rows {
        rows_times::<FMA, 4>(weights, x, cols, row, rows, out);
        row += 4;
    }
    while row < rows {
        rows_times::<FMA, 1>(weights, x, cols, row, rows, out);
        row += 1;
    }
}

#[inline(always)]
fn add_scaled<const FMA: bool>(y: &mut [f32], factor: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = mul_add::<FMA>(factor, *x, *y);
    }
}

/// [`super::Isa::dot_rows`] without special instructions.
pub(super) fn portable(weights: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    dot_rows::<false>(weights, x, cols, out);
}

/// [`super::Isa::dot_rows`] for AVX2 with FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) fn avx2(weights: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    dot_rows::<true>(weights, x, cols, out);
}

/// [`super::Isa::add_scaled`] without special instructions.
pub(super) fn add_scaled_portable(y: &mut [f32], factor: f32, x: &[f32]) {
    add_scaled::<false>(y, factor, x);
}

/// [`super::Isa::add_scaled`] for AVX2 with FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
pub(super) fn add_scaled_avx2(y: &mut [f32], factor: f32, x: &[f32]) {
    add_scaled::<true>(y, factor, x);
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
