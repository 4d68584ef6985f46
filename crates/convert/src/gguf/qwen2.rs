//! Architecture `qwen2`: Qwen 2 and 2.5, with biases on q, k and v.

use super::GgufError;
use super::block::{self, Parts};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;

pub(super) const FAMILY: Family = Family { arch: "qwen2", heads: HeadKeys::Uniform, reads: &[], build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    block::dense(source, "qwen2", &Parts::default())
}
