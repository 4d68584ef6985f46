//! One file per operation. Slots are `[tokens, width]`, row-major.

mod attention;
mod elementwise;
mod ffn;
mod linear;
mod rope;

pub(crate) use attention::attention;
pub(crate) use elementwise::{embed, norm, residual, rms_norm};
pub(crate) use ffn::gated_ffn;
pub(crate) use linear::{head, linear};
pub(crate) use rope::qk_norm_rope_store;
