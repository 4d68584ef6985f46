//! Architecture `qwen35moe`: `qwen35` with experts in every layer. The family's router always norms.

use super::GgufError;
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;
use super::{hybrid, moe, qwen35};

pub(super) const FAMILY: Family = Family { arch: "qwen35moe", heads: HeadKeys::Uniform, reads: &KEYS, build };

/// Keys that the hybrid architectures with experts read.
pub(super) const KEYS: [&str; 6] = [
    "expert_count",
    "expert_used_count",
    "expert_shared_count",
    "expert_gating_func",
    "expert_weights_scale",
    "nextn_predict_layers",
];

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let moe = moe::read(source, &moe::Defaults { norm: true, sigmoid: false, ffn_width: false })?;
    hybrid::model(source, "qwen3_5_moe_text", moe, qwen35::projections)
}
