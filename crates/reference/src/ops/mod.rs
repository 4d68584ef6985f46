//! The operations, one file per kind. Slots are `[tokens, width]`, row-major; formulas: docs/behaviour.md.

mod attention;
mod elementwise;
mod ffn;
mod gated_delta;
mod linear;
mod mla;
mod moe;
mod rope;
mod short_conv;

pub(crate) use attention::attention;
pub(crate) use elementwise::{concat, embed, norm, residual, scale, split_gate};
pub(crate) use ffn::gated_ffn;
pub(crate) use gated_delta::gated_delta;
pub(crate) use linear::{head, linear};
pub(crate) use mla::{mla_attention, mla_store};
pub(crate) use moe::moe;
pub(crate) use rope::qk_norm_rope_store;
pub(crate) use short_conv::short_conv;

/// One buffer per slot of the program.
pub(crate) type Slots = [Vec<f32>];

/// `a · b`, summed in f64.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

/// `1 / (1 + e^-x)`.
fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// `x / sqrt(mean(x²) + eps) * weight`, in place; mean square in f64, its inverse root rounded to f32.
fn rms_norm(x: &mut [f32], weight: &[f32], eps: f64) {
    rms_norm_plain(x, eps);
    for (x, w) in x.iter_mut().zip(weight) {
        *x *= w;
    }
}

/// `x / sqrt(mean(x²) + eps)`, in place.
fn rms_norm_plain(x: &mut [f32], eps: f64) {
    let inverse = (1.0 / (dot(x, x) / x.len() as f64 + eps).sqrt()) as f32;
    x.iter_mut().for_each(|x| *x *= inverse);
}

/// Whether a mask switches `index` off; without a mask everything is on.
fn is_off(mask: Option<&[f32]>, index: usize) -> bool {
    mask.is_some_and(|mask| mask[index] == 0.0)
}

/// The part of a slot that belongs to row `index`.
fn row_of(slot: &[f32], width: usize, index: usize) -> &[f32] {
    &slot[index * width..(index + 1) * width]
}

fn row_of_mut(slot: &mut [f32], width: usize, index: usize) -> &mut [f32] {
    &mut slot[index * width..(index + 1) * width]
}
