//! Architecture `qwen3`: dense Qwen 3, with norms on q and k.

use super::GgufError;
use super::block::{self, Parts, QkNorm};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;

pub(super) const FAMILY: Family = Family { arch: "qwen3", heads: HeadKeys::Uniform, reads: &[], build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    block::dense(source, "qwen3", &Parts { qk_norm: QkNorm::Head, ..Parts::default() })
}
