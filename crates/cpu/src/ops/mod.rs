//! One file per operation. Slots are `[tokens, width]`, row-major.

mod attention;
mod conv;
mod elementwise;
mod ffn;
mod gated_delta;
mod linear;
mod mla;
mod moe;
mod product;
mod rope;
mod short_conv;
mod softmax;
mod split_gate;
#[cfg(test)]
mod testing;

pub(crate) use attention::attention;
pub(crate) use conv::transposed_taps;
pub(crate) use elementwise::{concat, embed, norm, residual, scale};
pub(crate) use ffn::gated_ffn;
pub(crate) use gated_delta::gated_delta;
pub(crate) use linear::{head, linear};
pub(crate) use mla::{mla_attention, mla_store};
pub(crate) use moe::{MoeBuffers, moe};
pub(crate) use rope::qk_norm_rope_store;
pub(crate) use short_conv::short_conv;
pub(crate) use split_gate::split_gate;
