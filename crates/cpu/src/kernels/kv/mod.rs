//! Products with stored keys and values. f16 and 8-bit rows become f32 in registers: bytes read are 2 and 1 per
//! number. Sums have the order of the f32 kernels, so that f16 rows give the bits of the same rows in f32.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod portable;

use cortiq_model::{KvRows, KvValues};

use super::tile::{LANES, Lanes};
use super::{Isa, Kind};

/// A stored number that becomes f32 lanes of `V`.
trait Stored<V: Lanes>: Copy {
    /// Eight of them.
    fn lanes(source: &[Self; LANES]) -> V;
    /// One of them.
    fn single(self) -> f32;
}

/// `R` rows of `[R, x.len()]` times `x`.
#[inline(always)]
fn dot_tile<V: Lanes, S: Stored<V>, const R: usize>(rows: &[S], x: &[f32], out: &mut [f32]) {
    let cols = x.len();
    let (chunks, rest) = x.as_chunks::<LANES>();
    let whole = chunks.len();
    let rows: [&[S]; R] = std::array::from_fn(|r| &rows[r * cols..(r + 1) * cols]);
    let chunked = rows.map(|row| &row.as_chunks::<LANES>().0[..whole]);
    let mut sums = [V::zero(); R];
    for (i, chunk) in chunks.iter().enumerate() {
        let x = V::load(chunk);
        for r in 0..R {
            sums[r] = sums[r].add_product(S::lanes(&chunked[r][i]), x);
        }
    }
    for r in 0..R {
        let s = sums[r].to_array();
        let sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
        let last = rest.iter().zip(&rows[r][whole * LANES..]);
        out[r] = last.fold(sum, |sum, (x, s)| V::scalar_add_product(sum, s.single(), *x));
    }
}

/// `out[r] = rows[r] · x`.
#[inline(always)]
fn dot<V: Lanes, S: Stored<V>>(rows: &[S], x: &[f32], out: &mut [f32]) {
    let cols = x.len();
    let mut first = 0;
    while first + 8 <= out.len() {
        dot_tile::<V, S, 8>(&rows[first * cols..], x, &mut out[first..first + 8]);
        first += 8;
    }
    while first < out.len() {
        dot_tile::<V, S, 1>(&rows[first * cols..], x, &mut out[first..=first]);
        first += 1;
    }
}

/// `y += Σ weights[r] * rows[r]`, in the order of the rows.
#[inline(always)]
fn add_weighted<V: Lanes, S: Stored<V>>(rows: &[S], weights: &[f32], y: &mut [f32]) {
    let cols = y.len();
    let mut col = 0;
    while col + 4 * LANES <= cols {
        add_strip::<V, S, 4>(rows, weights, y, col);
        col += 4 * LANES;
    }
    while col + LANES <= cols {
        add_strip::<V, S, 1>(rows, weights, y, col);
        col += LANES;
    }
    for (i, y) in y[col..].iter_mut().enumerate() {
        let column = rows.iter().skip(col + i).step_by(cols);
        *y = column.zip(weights).fold(*y, |sum, (x, w)| V::scalar_add_product(sum, *w, x.single()));
    }
}

/// `N` vectors of columns from `col` on.
#[inline(always)]
fn add_strip<V: Lanes, S: Stored<V>, const N: usize>(rows: &[S], weights: &[f32], y: &mut [f32], col: usize) {
    let cols = y.len();
    let strip = &mut y[col..col + N * LANES].as_chunks_mut::<LANES>().0[..N];
    let mut sums: [V; N] = std::array::from_fn(|n| V::load(&strip[n]));
    for (row, weight) in rows.chunks_exact(cols).zip(weights) {
        let weight = V::splat(*weight);
        let row = &row[col..col + N * LANES].as_chunks::<LANES>().0[..N];
        for n in 0..N {
            sums[n] = sums[n].add_product(weight, S::lanes(&row[n]));
        }
    }
    for n in 0..N {
        sums[n].store(&mut strip[n]);
    }
}

/// The numbers in f32.
#[inline(always)]
fn decode<V: Lanes, S: Stored<V>>(rows: &[S], out: &mut [f32]) {
    let (chunks, rest) = rows.as_chunks::<LANES>();
    let (targets, last) = out[..rows.len()].as_chunks_mut::<LANES>();
    targets.iter_mut().zip(chunks).for_each(|(y, x)| S::lanes(x).store(y));
    last.iter_mut().zip(rest).for_each(|(y, x)| *y = x.single());
}

/// The kernels for one type of stored numbers.
macro_rules! stored_kernels {
    ($type:ty, $dot:ident, $add_weighted:ident, $decode:ident) => {
        impl Isa {
            fn $dot(self, rows: &[$type], x: &[f32], out: &mut [f32]) {
                match self.0 {
                    Kind::Portable => portable::$dot(rows, x, out),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: only `detect` makes this kind, on a processor with AVX2, FMA and F16C.
                    Kind::Avx2 => unsafe { avx2::$dot(rows, x, out) },
                }
            }

            fn $add_weighted(self, rows: &[$type], weights: &[f32], y: &mut [f32]) {
                match self.0 {
                    Kind::Portable => portable::$add_weighted(rows, weights, y),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    Kind::Avx2 => unsafe { avx2::$add_weighted(rows, weights, y) },
                }
            }

            fn $decode(self, rows: &[$type], out: &mut [f32]) {
                match self.0 {
                    Kind::Portable => portable::$decode(rows, out),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: as above.
                    Kind::Avx2 => unsafe { avx2::$decode(rows, out) },
                }
            }
        }
    };
}

stored_kernels!(u16, dot_f16, add_weighted_f16, decode_f16);
stored_kernels!(i8, dot_q8, add_weighted_q8, decode_q8);

impl Isa {
    /// `out[r] = rows[r] · x`. `scratch` has room for a row.
    pub(crate) fn dot_kv(self, rows: KvRows<'_>, x: &[f32], scratch: &mut [f32], out: &mut [f32]) {
        match rows.values() {
            KvValues::F32(rows) => self.dot_rows(rows, x, x.len(), out),
            KvValues::F16(rows) => self.dot_f16(rows, x, out),
            KvValues::Q8Channel { codes, scales } => {
                let scaled = &mut scratch[..x.len()];
                scaled.iter_mut().zip(x).zip(scales).for_each(|((y, x), s)| *y = x * s);
                self.dot_q8(codes, scaled, out);
            }
            KvValues::Q8Row { codes, scales } => {
                self.dot_q8(codes, x, out);
                out.iter_mut().zip(scales).for_each(|(y, s)| *y *= s);
            }
        }
    }

    /// `y += Σ weights[r] * rows[r]`. `scratch` has room for a row and for the weights.
    pub(crate) fn add_kv(self, rows: KvRows<'_>, weights: &[f32], scratch: &mut [f32], y: &mut [f32]) {
        match rows.values() {
            KvValues::F32(rows) => {
                rows.chunks_exact(y.len()).zip(weights).for_each(|(row, weight)| self.add_scaled(y, *weight, row));
            }
            KvValues::F16(rows) => self.add_weighted_f16(rows, weights, y),
            KvValues::Q8Channel { codes, scales } => {
                let sum = &mut scratch[..y.len()];
                sum.fill(0.0);
                self.add_weighted_q8(codes, weights, sum);
                self.multiply_add(y, sum, scales);
            }
            KvValues::Q8Row { codes, scales } => {
                let scaled = &mut scratch[..weights.len()];
                scaled.iter_mut().zip(weights).zip(scales).for_each(|((y, w), s)| *y = w * s);
                self.add_weighted_q8(codes, scaled, y);
            }
        }
    }

    /// The rows in f32: as they are, or written to `buffer`, which has room for them.
    pub(crate) fn kv_in_f32<'a>(self, rows: KvRows<'a>, buffer: &'a mut [f32]) -> &'a [f32] {
        let (width, out) = (rows.width(), &mut buffer[..]);
        match rows.values() {
            KvValues::F32(rows) => return rows,
            KvValues::F16(rows) => self.decode_f16(rows, out),
            KvValues::Q8Channel { codes, scales } => {
                self.decode_q8(codes, out);
                let rows = out.chunks_exact_mut(width.max(1)).take(rows.count());
                rows.for_each(|row| row.iter_mut().zip(scales).for_each(|(y, s)| *y *= s));
            }
            KvValues::Q8Row { codes, scales } => {
                self.decode_q8(codes, out);
                let rows = out.chunks_exact_mut(width.max(1)).zip(scales);
                rows.for_each(|(row, s)| row.iter_mut().for_each(|y| *y *= s));
            }
        }
        &out[..rows.count() * width]
    }
}

#[cfg(test)]
mod tests;
