//! Architecture `qwen3moe`: Qwen 3 with experts. Files do not say whether the router norms; all published models of
//! the architecture do.

use super::GgufError;
use super::block::{self, Parts, QkNorm};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;
use super::moe;

pub(super) const FAMILY: Family = Family { arch: "qwen3moe", heads: HeadKeys::Uniform, reads: &moe::KEYS, build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let defaults = moe::Defaults { norm: true, sigmoid: false, ffn_width: false };
    block::sparse(source, "qwen3_moe", &Parts { qk_norm: QkNorm::Head, ..Parts::default() }, &defaults)
}
