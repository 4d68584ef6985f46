//! Kernels without special instructions; the compiler vectorises them for what the target guarantees.

use super::delta::{self, DeltaSteps};
use super::elementwise;
use super::products::{self, Left, Right};
use super::tile::{self, LANES, Lanes};

#[derive(Clone, Copy)]
pub(super) struct Plain(pub(super) [f32; LANES]);

impl Lanes for Plain {
    #[inline(always)]
    fn zero() -> Self {
        Self([0.0; LANES])
    }

    #[inline(always)]
    fn load(source: &[f32; LANES]) -> Self {
        Self(*source)
    }

    #[inline(always)]
    fn add_product(mut self, a: Self, b: Self) -> Self {
        for lane in 0..LANES {
            self.0[lane] += a.0[lane] * b.0[lane];
        }
        self
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        Self([value; LANES])
    }

    #[inline(always)]
    fn store(self, target: &mut [f32; LANES]) {
        *target = self.0;
    }

    #[inline(always)]
    fn times(mut self, b: Self) -> Self {
        for lane in 0..LANES {
            self.0[lane] *= b.0[lane];
        }
        self
    }

    #[inline(always)]
    fn scalar_add_product(c: f32, a: f32, b: f32) -> f32 {
        c + a * b
    }
}

/// See [`super::Isa::dot_rows`].
pub(super) fn dot_rows(weights: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
    tile::dot_rows::<Plain>(weights, x, cols, out);
}

/// See [`super::Isa::add_scaled`].
pub(super) fn add_scaled(y: &mut [f32], factor: f32, x: &[f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y += factor * x;
    }
}

/// See [`super::Isa::multiply_add`].
pub(super) fn multiply_add(y: &mut [f32], a: &[f32], b: &[f32]) {
    elementwise::multiply_add::<Plain>(y, a, b);
}

/// See [`super::Isa::exp`].
pub(super) fn exp(x: &mut [f32]) {
    elementwise::exp::<Plain>(x);
}

/// See [`super::Isa::silu`].
pub(super) fn silu(x: &mut [f32]) {
    elementwise::silu::<Plain>(x);
}

/// See [`super::Isa::add_products`].
pub(super) fn add_products(left: Left<'_>, right: Right<'_>, out: &mut [f32], stride: usize) {
    products::add_products::<Plain>(left, right, out, stride);
}

/// See [`super::Isa::delta_steps`].
pub(super) fn delta_steps(steps: DeltaSteps<'_>) {
    delta::delta_steps::<Plain>(steps);
}
