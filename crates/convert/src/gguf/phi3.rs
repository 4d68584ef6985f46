//! Architecture `phi3`: Phi-3, Phi-3.5 and Phi-4. q, k and v are one tensor, gate and up another; the divisors of
//! longrope are the tensors `rope_factors_short.weight` and `rope_factors_long.weight`. A window is that of all
//! layers, as in the original models.

use cortiq_cmf::{NormStyle, RopeScaling};

use super::GgufError;
use super::block::{self, Parts};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;
use super::plan::Plan;
use super::rope;

pub(super) const FAMILY: Family = Family { arch: "phi3", heads: HeadKeys::Uniform, reads: &[], build };

const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    source.keys.refuse_pattern()?;
    let mut plan = source.plan("output_norm.weight", NormStyle::Qwen);
    block::layers(source, &mut plan, &Parts { fused_ffn: true, ..Parts::default() }, None)?;
    let scaling = rope_scaling(source, &mut plan)?;
    let mut arch = source.arch("phi3", source.ffn()?, scaling);
    arch.sliding_window = source.keys.window()?;
    Ok(Model { arch, plan, notes: Vec::new() })
}

fn rope_scaling(source: &Source<'_>, plan: &mut Plan) -> Result<Option<RopeScaling>, GgufError> {
    let missing = |name: &str| GgufError::MissingTensor { name: name.to_owned() };
    let factors = match (source.values_of(SHORT)?, source.values_of(LONG)?) {
        (Some(short), Some(long)) => (short, long),
        (None, None) => return source.rope_scaling(),
        (None, Some(_)) => return Err(missing(SHORT)),
        (Some(_), None) => return Err(missing(LONG)),
    };
    plan.consumed.extend([SHORT.to_owned(), LONG.to_owned()]);
    let (keys, hyper) = (&source.keys, &source.hyper);
    let sizes = [hyper.rotary_dim, hyper.context];
    rope::long_rope(keys.metadata, keys.arch, [&factors.0, &factors.1], sizes).map(Some)
}
