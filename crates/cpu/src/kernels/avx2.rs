//! Kernels for AVX2 with FMA.

use std::arch::x86_64::{
    __m256, _mm256_fmadd_ps, _mm256_loadu_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_storeu_ps,
};

use super::delta::{self, DeltaSteps};
use super::elementwise;
use super::products::{self, Left, Right};
use super::tile::{self, LANES, Lanes};

#[derive(Clone, Copy)]
pub(super) struct Avx2(pub(super) __m256);

// The methods are inlined into the functions below, which have the instructions enabled.
impl Lanes for Avx2 {
    #[inline(always)]
    fn zero() -> Self {
        // SAFETY: this type is only used by the functions below, whose callers have checked for AVX2.
        Self(unsafe { _mm256_setzero_ps() })
    }

    #[inline(always)]
    fn load(source: &[f32; LANES]) -> Self {
        // SAFETY: eight floats are readable; AVX2 as above.
        Self(unsafe { _mm256_loadu_ps(source.as_ptr()) })
    }

    #[inline(always)]
    fn add_product(self, a: Self, b: Self) -> Self {
        // SAFETY: AVX2 and FMA as above.
        Self(unsafe { _mm256_fmadd_ps(a.0, b.0, self.0) })
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: AVX2 as above.
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    fn store(self, target: &mut [f32; LANES]) {
        // SAFETY: eight floats are writable; AVX2 as above.
        unsafe { _mm256_storeu_ps(target.as_mut_ptr(), self.0) };
    }

    #[inline(always)]
    fn times(self, b: Self) -> Self {
        // SAFETY: AVX2 as above.
        Self(unsafe { _mm256_mul_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn scalar_add_product(c: f32, a: f32, b: f32) -> f32 {
        a.mul_add(b, c)
    }
}

/// See [`super::Isa::dot_rows`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn dot_rows(weights: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    tile::dot_rows::<Avx2>(weights, x, cols, out);
}

/// See [`super::Isa::add_scaled`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn add_scaled(y: &mut [f32], factor: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = factor.mul_add(*x, *y);
    }
}

/// See [`super::Isa::multiply_add`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply_add(y: &mut [f32], a: &[f32], b: &[f32]) {
    elementwise::multiply_add::<Avx2>(y, a, b);
}

/// See [`super::Isa::exp`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn exp(x: &mut [f32]) {
    elementwise::exp::<Avx2>(x);
}

/// See [`super::Isa::silu`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn silu(x: &mut [f32]) {
    elementwise::silu::<Avx2>(x);
}

/// See [`super::Isa::add_products`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn add_products(left: Left<'_>, right: Right<'_>, out: &mut [f32], stride: usize) {
    products::add_products::<Avx2>(left, right, out, stride);
}

/// See [`super::Isa::delta_steps`].
#[target_feature(enable = "avx2,fma")]
pub(super) fn delta_steps(steps: DeltaSteps<'_>) {
    delta::delta_steps::<Avx2>(steps);
}
