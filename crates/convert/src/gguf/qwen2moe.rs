//! Architecture `qwen2moe`: Qwen 1.5 and 2 with experts and a gated shared expert. Files do not say whether the
//! router norms; no published model of the architecture does.

use super::GgufError;
use super::block::{self, Parts};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;
use super::moe;

pub(super) const FAMILY: Family = Family { arch: "qwen2moe", heads: HeadKeys::Uniform, reads: &moe::KEYS, build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let defaults = moe::Defaults { norm: false, sigmoid: false, ffn_width: false };
    block::sparse(source, "qwen2_moe", &Parts { shared_gate: true, ..Parts::default() }, &defaults)
}
