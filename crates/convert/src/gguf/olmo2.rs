//! Architecture `olmo2`: OLMo 2. Norms are on the outputs of attention and FFN, and on q and k over all heads.
//!
//! OLMo 3 has the same architecture name and a sliding window, whose layers rotate differently; it is refused.

use super::GgufError;
use super::block::{self, Norms, Parts, QkNorm};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;

pub(super) const FAMILY: Family = Family { arch: "olmo2", heads: HeadKeys::Uniform, reads: &[], build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    if let Some(window) = source.keys.window()? {
        let key = source.keys.key("attention.sliding_window");
        return Err(GgufError::unsupported_key(key, window, "a model with a window is OLMo 3"));
    }
    let mut parts = Parts { norms: Norms::Post, ..Parts::default() };
    parts.qk_norm = QkNorm::Wide;
    block::dense(source, "olmo2", &parts)
}
