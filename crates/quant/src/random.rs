//! Valid random payloads, for benchmarks and tests without a model.
//!
//! Bytes come from ChaCha8, one stream per chunk, so that the result depends on the seed alone and not on the
//! number of threads. Decoded values have a standard deviation of about 1/sqrt(cols), as trained weights have.

use cortiq_cmf::Dtype;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use rayon::prelude::*;

use crate::common::{GROUP, element_count};
use crate::encoding::Encoding;
use crate::error::QuantError;
use crate::float::{f32_to_bf16, f32_to_f16};
use crate::q1t::{DIGITS, POW3};
use crate::{q1, q1s, q1t, q1t_encode, vbit};

/// Bytes that one task fills, at most: a buffer that stays in the cache while it is post-processed.
const TASK_BYTES: usize = 1 << 16;

/// One outlier in so many weights (q1s, q1t).
const OUTLIER_STRIDE: usize = 100;

/// Outliers are this many standard deviations large.
const OUTLIER_SIZE: f32 = 3.0;

/// Makes a payload of `dtype` for a `[rows, cols]` matrix from a seed.
///
/// It has the length and inner structure that [`crate::MatrixView::new`] and the container demand: finite scales,
/// mixed row widths for `vbit` and `vbit_ro`, about 1 % outliers (with base code 0 under them) for `q1s` and `q1t`.
/// The same arguments give the same bytes whatever the number of threads.
///
/// # Errors
/// [`QuantError::Empty`], [`QuantError::TooLarge`] or [`QuantError::Shape`] where the dtype's encoder refuses the shape.
pub fn random_payload(dtype: Dtype, rows: usize, cols: usize, seed: u64) -> Result<Vec<u8>, QuantError> {
    let n = Encoding::for_dtype(dtype).check_shape(rows, cols)?;
    let sigma = 1.0 / (cols as f32).sqrt();
    let source = Source { seed };
    match dtype {
        Dtype::F32 => Ok(source.f32(n, sigma)),
        Dtype::F16 => Ok(source.halves(n, sigma, f32_to_f16)),
        Dtype::Bf16 => Ok(source.halves(n, sigma, f32_to_bf16)),
        Dtype::Q8Row => Ok(source.q8_row(n, rows, sigma)),
        Dtype::Q8_2f => Ok(source.q8_2f(n, rows, cols, sigma)),
        Dtype::Q4Block => Ok(source.q4_block(n.div_ceil(GROUP), sigma)),
        Dtype::Q4Tiled => Ok(source.q4_tiled(n / GROUP, sigma)),
        Dtype::Vbit => source.vbit(rows, cols, sigma, false),
        Dtype::VbitRo => source.vbit(rows, cols, sigma, true),
        Dtype::Q1 => Ok(source.q1(n, sigma)),
        Dtype::Q1s => source.q1s(n, rows, cols, sigma),
        Dtype::Q1t => source.q1t(rows, cols, sigma),
    }
}

/// Root mean square of 0.75..1.25 uniform, the factor that [`jitter`] puts on a scale.
const JITTER_RMS: f32 = 1.010_363;

/// Root mean square of a code uniform in -128..=127.
const RMS_8_BIT: f32 = 73.9;

/// Root mean square of a code uniform in -8..=7.
const RMS_4_BIT: f32 = 4.637;

/// Turns two random bytes into an f16 scale between 0.75 and 1.25 times `base`.
fn jitter(bytes: [u8; 2], base: f32) -> [u8; 2] {
    let factor = f32::from(u16::from_le_bytes(bytes)) / 131_072.0 + 0.75;
    f32_to_f16(base * factor).to_le_bytes()
}

/// Base of a scale such that codes of root mean square `code_rms` decode to `sigma`.
fn scale_base(sigma: f32, code_rms: f32) -> f32 {
    sigma / (code_rms * JITTER_RMS)
}

/// An outlier's f16 bytes with the sign of a random bit.
fn outlier(random: u8, sigma: f32) -> [u8; 2] {
    let size = sigma * OUTLIER_SIZE;
    f32_to_f16(if random & 1 == 0 { size } else { -size }).to_le_bytes()
}

struct Source {
    seed: u64,
}

impl Source {
    /// Fills units of `N` bytes with random bytes, then lets `shape` edit each unit, given its index.
    ///
    /// Different `part`s are independent.
    fn units<const N: usize>(&self, part: u64, out: &mut [u8], shape: impl Fn(usize, &mut [u8; N]) + Sync) {
        let per_task = (TASK_BYTES / N).max(1);
        out.as_chunks_mut::<N>().0.par_chunks_mut(per_task).enumerate().for_each(|(task, units)| {
            let mut rng = ChaCha8Rng::seed_from_u64(self.seed);
            rng.set_stream(part << 48 | task as u64);
            rng.fill_bytes(units.as_flattened_mut());
            for (at, unit) in units.iter_mut().enumerate() {
                shape(task * per_task + at, unit);
            }
        });
    }

    fn bytes(&self, part: u64, out: &mut [u8]) {
        self.units::<1>(part, out, |_, _| {});
    }

    fn scales(&self, part: u64, out: &mut [u8], base: f32) {
        self.units::<2>(part, out, |_, bytes| *bytes = jitter(*bytes, base));
    }

    /// Uniform values of standard deviation `sigma`.
    fn f32(&self, n: usize, sigma: f32) -> Vec<u8> {
        let mut out = vec![0; 4 * n];
        let step = sigma * 3.0f32.sqrt() / 2_147_483_648.0;
        self.units::<4>(0, &mut out, |_, bytes| {
            *bytes = (i32::from_le_bytes(*bytes) as f32 * step).to_le_bytes();
        });
        out
    }

    /// Uniform values of standard deviation `sigma` in a 16-bit float.
    fn halves(&self, n: usize, sigma: f32, convert: impl Fn(f32) -> u16 + Sync) -> Vec<u8> {
        let mut out = vec![0; 2 * n];
        let step = sigma * 3.0f32.sqrt() / 32_768.0;
        self.units::<2>(0, &mut out, |_, bytes| {
            *bytes = convert(f32::from(i16::from_le_bytes(*bytes)) * step).to_le_bytes();
        });
        out
    }

    fn q8_row(&self, n: usize, rows: usize, sigma: f32) -> Vec<u8> {
        let mut out = vec![0; n + 2 * rows];
        let (codes, scales) = out.split_at_mut(n);
        self.bytes(0, codes);
        self.scales(1, scales, scale_base(sigma, RMS_8_BIT));
        out
    }

    fn q8_2f(&self, n: usize, rows: usize, cols: usize, sigma: f32) -> Vec<u8> {
        let mut out = vec![0; n + 2 * rows + 2 * cols];
        let (codes, rest) = out.split_at_mut(n);
        let (row_scales, col_scales) = rest.split_at_mut(2 * rows);
        // The encoder's clamp is symmetric: -128 never occurs.
        self.units::<1>(0, codes, |_, code| code[0] = (code[0] as i8).max(-127) as u8);
        self.scales(1, row_scales, scale_base(sigma, RMS_8_BIT));
        self.scales(2, col_scales, scale_base(1.0, 1.0));
        out
    }

    fn q4_block(&self, groups: usize, sigma: f32) -> Vec<u8> {
        let mut out = vec![0; groups * 18];
        let (codes, scales) = out.split_at_mut(groups * 16);
        self.bytes(0, codes);
        self.scales(1, scales, scale_base(sigma, RMS_4_BIT));
        out
    }

    fn q4_tiled(&self, groups: usize, sigma: f32) -> Vec<u8> {
        let mut out = vec![0; groups * 18];
        let base = scale_base(sigma, RMS_4_BIT);
        self.units::<18>(0, &mut out, |_, [s0, s1, ..]| [*s0, *s1] = jitter([*s0, *s1], base));
        out
    }

    fn vbit(&self, rows: usize, cols: usize, sigma: f32, with_offsets: bool) -> Result<Vec<u8>, QuantError> {
        let mut widths = vec![0; rows];
        self.units::<1>(2, &mut widths, |_, width| width[0] = vbit::WIDTHS[usize::from(width[0]) % vbit::WIDTHS.len()]);
        let name = if with_offsets { "vbit_ro" } else { "vbit" };
        let (mut out, table_end) = vbit::allocate(name, &widths, rows, cols, with_offsets)?;
        let (head, packed) = out.split_at_mut(table_end);
        let groups = cols / GROUP;
        let bases = vbit::WIDTHS.map(|width| {
            // Codes are uniform in -L..=L+1: variance (4^width - 1) / 12 around a mean of one half.
            let mean_square = (f32::from(width).exp2().powi(2) - 1.0) / 12.0 + 0.25;
            (width, scale_base(sigma, mean_square.sqrt()))
        });
        self.units::<2>(1, &mut head[rows..rows + 2 * rows * groups], |at, bytes| {
            let width = widths[at / groups];
            let base = bases.iter().find(|(w, _)| *w == width).map_or(sigma, |(_, base)| *base);
            *bytes = jitter(*bytes, base);
        });
        self.bytes(0, packed);
        Ok(out)
    }

    fn q1(&self, n: usize, sigma: f32) -> Vec<u8> {
        let mut out = vec![0; n / GROUP * q1::TILE];
        self.q1_tiles(&mut out, sigma);
        out
    }

    fn q1_tiles(&self, out: &mut [u8], sigma: f32) {
        let base = scale_base(sigma, 1.0);
        self.units::<{ q1::TILE }>(0, out, |_, [s0, s1, ..]| [*s0, *s1] = jitter([*s0, *s1], base));
    }

    fn q1s(&self, n: usize, rows: usize, cols: usize, sigma: f32) -> Result<Vec<u8>, QuantError> {
        let count = n.div_ceil(OUTLIER_STRIDE);
        let stored = u32::try_from(count).map_err(|_| QuantError::TooLarge {
            dtype: "q1s",
            rows,
            cols,
            what: "entry count is 32 bits",
        })?;
        let base_len = n / GROUP * q1::TILE;
        let mut out = vec![0; base_len + 4 + count * q1s::ENTRY];
        let (tiles, rest) = out.split_at_mut(base_len);
        let (head, entries) = rest.split_at_mut(4);
        self.q1_tiles(tiles, sigma);
        head.copy_from_slice(&stored.to_le_bytes());
        self.units::<{ q1s::ENTRY }>(1, entries, |at, entry| {
            let index = pick(at, entry[0], n);
            let [i0, i1, i2, i3] = (index as u32).to_le_bytes();
            let [v0, v1] = outlier(entry[4], sigma);
            *entry = [i0, i1, i2, i3, v0, v1];
        });
        Ok(out)
    }

    fn q1t(&self, rows: usize, cols: usize, sigma: f32) -> Result<Vec<u8>, QuantError> {
        let n = element_count(q1t::NAME, rows, cols)?;
        let per_row = cols.div_ceil(OUTLIER_STRIDE);
        if u32::try_from(rows * per_row).is_err() {
            return Err(QuantError::TooLarge { dtype: q1t::NAME, rows, cols, what: "entry count is 32 bits" });
        }
        let base_len = n / GROUP * q1t::TILE;
        let mut out = vec![0; base_len + 4 * (rows + 1) + rows * per_row * q1t::ENTRY];
        let (tiles, rest) = out.split_at_mut(base_len);
        let (row_ptr, entries) = rest.split_at_mut(4 * (rows + 1));
        q1t_encode::write_row_ptr(row_ptr, &vec![per_row; rows]);
        // Two of three codes are +-s.
        let base = scale_base(sigma, (2.0f32 / 3.0).sqrt());
        self.units::<{ q1t::TILE }>(0, tiles, |_, [s0, s1, codes @ .., last]| {
            [*s0, *s1] = jitter([*s0, *s1], base);
            codes.iter_mut().for_each(|code| *code = below(*code, 243));
            *last = below(*last, 9);
        });
        self.units::<{ q1t::ENTRY }>(1, entries, |at, entry| {
            let [c0, c1] = (pick(at % per_row, entry[0], cols) as u16).to_le_bytes();
            let [v0, v1] = outlier(entry[2], sigma);
            *entry = [c0, c1, v0, v1];
        });
        let tiles = tiles.as_chunks_mut::<{ q1t::TILE }>().0.par_chunks_mut(cols / GROUP);
        let entries = entries.as_chunks::<{ q1t::ENTRY }>().0.par_chunks(per_row);
        tiles.zip(entries).for_each(|(tiles, entries)| clear_codes(tiles, entries));
        Ok(out)
    }
}

/// A random position in the `at`-th stretch of [`OUTLIER_STRIDE`], below `end`.
fn pick(at: usize, random: u8, end: usize) -> usize {
    (at * OUTLIER_STRIDE + usize::from(below(random, OUTLIER_STRIDE as u8))).min(end - 1)
}

/// Maps a random byte to 0..limit.
fn below(random: u8, limit: u8) -> u8 {
    ((u16::from(random) * u16::from(limit)) >> 8) as u8
}

/// Sets the base code under each entry of a row to 0.
fn clear_codes(tiles: &mut [[u8; q1t::TILE]], entries: &[[u8; q1t::ENTRY]]) {
    for entry in entries {
        let col = usize::from(u16::from_le_bytes([entry[0], entry[1]]));
        let k = col % GROUP;
        let code = &mut tiles[col / GROUP][2 + k / DIGITS];
        let power = POW3[k % DIGITS];
        *code -= *code / power % 3 * power;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::f16_at;
    use crate::{MatrixView, decode};

    #[test]
    fn valid_and_scaled() {
        for dtype in Dtype::ALL {
            for (rows, cols) in [(1, 32), (7, 96), (96, 1024)] {
                let bytes = random_payload(dtype, rows, cols, 5).unwrap();
                let values = decode(dtype, &bytes, rows, cols).unwrap();
                if rows * cols < 10_000 {
                    continue;
                }
                let mean_square = values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / values.len() as f64;
                let ratio = (mean_square * cols as f64).sqrt();
                assert!((0.9..1.1).contains(&ratio), "{}: {ratio}", dtype.name());
            }
        }
    }

    #[test]
    fn the_seed_alone_decides() {
        let pool = |threads| rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        for dtype in Dtype::ALL {
            let make = |seed| random_payload(dtype, 64, 2048, seed).unwrap();
            let one = pool(1).install(|| make(1));
            assert_eq!(one, pool(4).install(|| make(1)), "{}", dtype.name());
            assert_ne!(one, make(2), "{}", dtype.name());
        }
    }

    #[test]
    fn widths_are_mixed_and_outliers_present() {
        let bytes = random_payload(Dtype::VbitRo, 64, 32, 3).unwrap();
        let MatrixView::Vbit(view) = MatrixView::new(Dtype::VbitRo, &bytes, 64, 32).unwrap() else {
            panic!("vbit view")
        };
        for width in vbit::WIDTHS {
            assert!(view.widths().contains(&width), "{width}");
        }
        let bytes = random_payload(Dtype::Q1t, 8, 3200, 3).unwrap();
        assert_eq!(q1t::Q1t::new(&bytes, 8, 3200).unwrap().entries().len(), 8 * 32);
        let bytes = random_payload(Dtype::Q1s, 8, 3200, 3).unwrap();
        assert_eq!(q1s::Q1s::new(&bytes, 8, 3200).unwrap().entries().len(), 256);
    }

    #[test]
    fn jitter_bounds() {
        for (bytes, want) in [([0, 0], 0.75), ([0xFF, 0xFF], 1.25), ([0, 0x80], 1.0)] {
            assert!((f16_at(jitter(bytes, 1.0)) - want).abs() < 1e-3);
        }
    }
}
