//! Kernels, chosen once by the instruction sets that the processor has.

#![allow(unsafe_code)]

#[cfg(target_arch = "x86_64")]
mod avx2;
mod bandwidth;
mod delta;
mod elementwise;
mod kv;
mod packed;
mod portable;
mod products;
mod q1;
mod q1t;
mod q4;
mod q8;
mod tile;
mod vbit;

pub use bandwidth::{BANDWIDTH_BYTES, read_bandwidth};
pub(crate) use delta::DeltaSteps;
pub use packed::InputBits;
pub(crate) use packed::{InputRows, Inputs, Job, takes};
pub(crate) use products::{Left, Right};

/// Kernels for an instruction set that this processor has: there is no other way to make one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Isa(Kind);

/// Instruction set that kernels were compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Whatever the target guarantees.
    Portable,
    /// AVX2 with FMA and F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Isa {
    /// The best one that this processor has.
    pub fn detect() -> Self {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
            return Self(Kind::Avx2);
        }
        Self(Kind::Portable)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "AVX2",
        }
    }

    /// Every one that this processor has.
    pub fn available() -> Vec<Self> {
        let best = Self::detect();
        let portable = Self(Kind::Portable);
        if best == portable { vec![best] } else { vec![portable, best] }
    }

    /// `out[t * rows + r] = weights[r] · x[t]` for row-major `weights` `[rows, cols]` and `x` `[n, cols]`.
    ///
    /// Reads `4 * rows * cols` bytes of weights once per three rows of `x`; the caller keeps them in the L1 cache.
    pub(crate) fn dot_rows(self, weights: &[f32], x: &[f32], cols: usize, out: &mut [f32]) {
        match self.0 {
            Kind::Portable => portable::dot_rows(weights, x, cols, out),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` makes this kind, on a processor with AVX2 and FMA.
            Kind::Avx2 => unsafe { avx2::dot_rows(weights, x, cols, out) },
        }
    }

    /// `a · b`, in the same order of summation as [`Isa::dot_rows`].
    pub(crate) fn dot(self, a: &[f32], b: &[f32]) -> f32 {
        let mut out = [0.0];
        self.dot_rows(a, b, a.len(), &mut out);
        out[0]
    }

    /// `y += factor * x`.
    pub(crate) fn add_scaled(self, y: &mut [f32], factor: f32, x: &[f32]) {
        match self.0 {
            Kind::Portable => portable::add_scaled(y, factor, x),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` makes this kind, on a processor with AVX2 and FMA.
            Kind::Avx2 => unsafe { avx2::add_scaled(y, factor, x) },
        }
    }

    /// `y += a * b`, element by element.
    pub(crate) fn multiply_add(self, y: &mut [f32], a: &[f32], b: &[f32]) {
        match self.0 {
            Kind::Portable => portable::multiply_add(y, a, b),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` makes this kind, on a processor with AVX2 and FMA.
            Kind::Avx2 => unsafe { avx2::multiply_add(y, a, b) },
        }
    }

    /// `x = e^x` within 2 units in the last place; 0 below -86.9, infinite above 88.7.
    pub(crate) fn exp(self, x: &mut [f32]) {
        match self.0 {
            Kind::Portable => portable::exp(x),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` makes this kind, on a processor with AVX2 and FMA.
            Kind::Avx2 => unsafe { avx2::exp(x) },
        }
    }

    /// `x = x / (1 + e^-x)`.
    pub(crate) fn silu(self, x: &mut [f32]) {
        match self.0 {
            Kind::Portable => portable::silu(x),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` makes this kind, on a processor with AVX2 and FMA.
            Kind::Avx2 => unsafe { avx2::silu(x) },
        }
    }

    /// `out += left · right`; row `r` of `out` is at `r * stride`, `[left.rows, right.cols]`.
    ///
    /// Every element is one chain of additions over `left.inner`, from what was in `out`: the same whatever the tile.
    pub(crate) fn add_products(self, left: Left<'_>, right: Right<'_>, out: &mut [f32], stride: usize) {
        match self.0 {
            Kind::Portable => portable::add_products(left, right, out, stride),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` makes this kind, on a processor with AVX2 and FMA.
            Kind::Avx2 => unsafe { avx2::add_products(left, right, out, stride) },
        }
    }

    /// Steps of the gated delta rule on one head, see [`DeltaSteps`].
    pub(crate) fn delta_steps(self, steps: DeltaSteps<'_>) {
        match self.0 {
            Kind::Portable => portable::delta_steps(steps),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: only `detect` makes this kind, on a processor with AVX2 and FMA.
            Kind::Avx2 => unsafe { avx2::delta_steps(steps) },
        }
    }
}
