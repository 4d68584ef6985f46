//! Architecture `lfm2moe`: `lfm2` with experts behind a sigmoid router, which always norms, in all layers but the
//! first ones.

use super::GgufError;
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;
use super::{lfm2, moe};

pub(super) const FAMILY: Family = Family { arch: "lfm2moe", heads: HeadKeys::SomeLayers, reads: &moe::KEYS, build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let moe = moe::read(source, &moe::Defaults { norm: true, sigmoid: true, ffn_width: false })?;
    lfm2::model(source, "lfm2_moe", moe)
}
