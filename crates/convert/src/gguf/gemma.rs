//! Architecture `gemma`: Gemma 1. Embeddings are multiplied by the square root of the width, which files do not say.
//!
//! In this and the later generations a norm multiplies by `1 + w`, and files hold that sum. It is undone, so that
//! the result is that of the original checkpoint; nothing is lost ([`Values::MinusOne`](super::plan::Values)).

use cortiq_cmf::{ModelArch, NormStyle, RopeScaling};

use super::GgufError;
use super::block::{self, Parts};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;

pub(super) const FAMILY: Family = Family { arch: "gemma", heads: HeadKeys::Uniform, reads: &[], build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    source.keys.refuse_window()?;
    let mut plan = source.plan("output_norm.weight", NormStyle::Gemma);
    block::layers(source, &mut plan, &Parts { offset_norms: true, ..Parts::default() }, None)?;
    let arch = arch(source, "gemma", source.rope_scaling()?)?;
    Ok(Model { arch, plan, notes: Vec::new() })
}

/// What the first three generations share.
pub(super) fn arch(
    source: &Source<'_>,
    arch_name: &str,
    rope_scaling: Option<RopeScaling>,
) -> Result<ModelArch, GgufError> {
    Ok(ModelArch {
        norm_style: NormStyle::Gemma,
        hidden_act: "gelu_tanh".to_owned(),
        embed_multiplier: (source.hyper.hidden as f64).sqrt() as f32,
        ..source.arch(arch_name, source.ffn()?, rope_scaling)
    })
}

/// What the scale of the scores is the inverse root of, in the second and third generation: files do not say it. In
/// the 27B models, known by their number of layers, it is the width per head, else the width of a head.
pub(super) fn query_scale(source: &Source<'_>, layers_27b: usize) -> f64 {
    let hyper = &source.hyper;
    let scale = if hyper.layers == layers_27b { hyper.hidden / hyper.heads } else { hyper.head_dim };
    scale as f64
}
