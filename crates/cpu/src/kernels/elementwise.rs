//! Functions of single values, written so that the compiler turns the loops into vector code of the caller's
//! instruction set.

use super::tile::Lanes;

/// Below it the exponential is taken as 0: just above the smallest normal f32.
const LOWEST: f32 = -86.9;
/// Above it the exponential is no finite f32.
const HIGHEST: f32 = 88.722_83;
/// 1.5 · 2²³: a sum with it has the nearest integer in its low bits.
const ROUNDER: f32 = 12_582_912.0;
/// ln 2 in two parts; products of the first with small integers are exact.
const LN2: [f32; 2] = [0.693_359_4, -2.121_944_4e-4];

/// `e^x`: `2^n` times a Taylor polynomial of degree 7 on `|r| <= ln 2 / 2`, `x = n ln 2 + r`.
#[inline(always)]
fn exponential<V: Lanes>(x: f32) -> f32 {
    let rounded = V::scalar_add_product(ROUNDER, x.clamp(LOWEST, HIGHEST), std::f32::consts::LOG2_E);
    let n = rounded - ROUNDER;
    let r = V::scalar_add_product(V::scalar_add_product(x.clamp(LOWEST, HIGHEST), n, -LN2[0]), n, -LN2[1]);
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = V::scalar_add_product(coefficient, p, r);
    }
    // 2^(n-1), doubled afterwards, so that n = 128 stays in range.
    let half_power = f32::from_bits(rounded.to_bits().wrapping_add(126) << 23);
    let value = p * half_power * 2.0;
    if x < LOWEST {
        0.0
    } else if x > HIGHEST {
        f32::INFINITY
    } else {
        value
    }
}

/// See [`super::Isa::exp`].
#[inline(always)]
pub(super) fn exp<V: Lanes>(x: &mut [f32]) {
    for x in x {
        *x = exponential::<V>(*x);
    }
}

/// See [`super::Isa::silu`].
#[inline(always)]
pub(super) fn silu<V: Lanes>(x: &mut [f32]) {
    for x in x {
        *x /= 1.0 + exponential::<V>(-*x);
    }
}

/// See [`super::Isa::multiply_add`].
#[inline(always)]
pub(super) fn multiply_add<V: Lanes>(y: &mut [f32], a: &[f32], b: &[f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = V::scalar_add_product(*y, *a, *b);
    }
}

#[cfg(test)]
mod tests {
    use crate::Isa;

    #[test]
    fn exponentials_are_close_everywhere() {
        for isa in Isa::available() {
            let x: Vec<f32> = (-8690..8872).map(|i| i as f32 / 100.0).collect();
            let mut y = x.clone();
            isa.exp(&mut y);
            for (x, y) in x.iter().zip(y) {
                let exact = f64::from(*x).exp();
                assert!((f64::from(y) - exact).abs() <= 2.5e-7 * exact, "{isa:?}: e^{x} = {y}");
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_are_kept() {
        for isa in Isa::available() {
            let mut x = [0.0, -0.0, f32::NEG_INFINITY, -1e30, f32::INFINITY, 90.0, f32::NAN];
            isa.exp(&mut x);
            assert_eq!(x[..6], [1.0, 1.0, 0.0, 0.0, f32::INFINITY, f32::INFINITY]);
            assert!(x[6].is_nan());
            let mut x = [0.0, 1.0, -1e3, 1e3, f32::NAN];
            isa.silu(&mut x);
            assert!((x[1] - 0.731_058_6).abs() < 1e-7 && x[0] == 0.0 && x[2] == 0.0 && x[3] == 1e3 && x[4].is_nan());
        }
    }
}
