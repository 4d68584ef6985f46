//! Weight codecs of the CMF container: one file per dtype with its layout, encoder, decoder and checked view.
//!
//! Owns: the bytes of a tensor's payload (docs/cmf-format.md §6 and §7), the reference quantisers, the half-float
//! rules and random payloads for benchmarks. Entry points: [`encode`], [`decode`] and [`MatrixView::new`].
//!
//! Must not know: container structure beyond [`cortiq_cmf::Dtype`], tensor names, which tensor gets which
//! encoding (that is the converter's policy), devices and kernels.

mod common;
mod encoding;
mod error;
mod fit;
mod float;
mod nibbles;
mod q1;
mod q1s;
mod q1t;
mod q1t_encode;
mod q4_block;
mod q4_tiled;
mod q8_2f;
mod q8_row;
mod random;
mod select;
mod vbit;
mod view;

pub use common::GROUP;
pub use encoding::{Encoding, encode, encode_fitted};
pub use error::QuantError;
pub use fit::Fit;
pub use float::{Bf16, F16, F32, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use q1::Q1;
pub use q1s::Q1s;
pub use q1t::{Q1t, ternary_codes};
pub use q1t_encode::Q1tOptions;
pub use q4_block::Q4Block;
pub use q4_tiled::Q4Tiled;
pub use q8_2f::Q8_2f;
pub use q8_row::Q8Row;
pub use random::random_payload;
pub use vbit::Vbit;
pub use view::{MatrixView, decode};
