//! One file per operation: bindings and grid of its shaders.

mod attention;
mod elementwise;
mod embed;
mod ffn;
mod fused;
mod gated_delta;
mod gemm;
mod head;
mod linear;
mod mla;
mod moe;
mod norm;
mod quantise;
mod rope;
mod short_attention;
mod short_conv;
mod top;

pub(crate) use attention::{attention, tile_queries};
pub(crate) use elementwise::{concat, residual, scale, split_gate};
pub(crate) use embed::embed;
pub(crate) use ffn::gated_ffn;
pub(crate) use fused::{
    FusedInput, fused_gated, fused_linear, mixed_linear, most_cols, takes_gated, takes_linear, takes_mixed,
};
pub(crate) use gated_delta::gated_delta;
#[cfg(feature = "lab")]
pub(crate) use gemm::{VARIANTS, Variant, gemm_with};
pub(crate) use gemm::{gemm_choice, grouped_choice};
pub(crate) use head::{Head, head};
pub(crate) use linear::linear;
#[cfg(feature = "lab")]
pub(crate) use linear::{Product, Store, add_overlay, product};
pub(crate) use mla::{mla_attention, mla_store};
pub(crate) use moe::{moe, most_cols as most_expert_cols};
pub(crate) use norm::norm;
pub(crate) use quantise::{Codes, quantise};
pub(crate) use rope::qk_norm_rope_store;
pub(crate) use short_attention::{SHORT_CONTEXT, fits_short, short_attention, takes_short};
pub(crate) use short_conv::short_conv;
#[cfg(feature = "lab")]
pub(crate) use top::top_slices;
pub(crate) use top::{Top, top_scratch, top_size, top_slice};

use crate::kernel::{WORKGROUP, with_teams};
use crate::plan::Recorder;
use crate::shader::{Source, wgsl};

/// A shader with what nearly all of them use: the step, the grid and teams of threads.
pub(crate) fn source(rec: &Recorder<'_>, name: &'static str, body: &'static str, workgroup: u32) -> Source {
    let source = Source::new(name, body).part(wgsl!("lib/step.wgsl")).part(wgsl!("lib/grid.wgsl"));
    with_teams(rec.step_layout.constants(source), rec.gpu, workgroup)
}

/// Workgroups of [`WORKGROUP`] threads for `count` elements.
pub(crate) fn groups_for(count: usize) -> u32 {
    count.div_ceil(WORKGROUP as usize) as u32
}
