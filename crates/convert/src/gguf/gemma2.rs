//! Architecture `gemma2`: norms on inputs and outputs, caps on scores and logits, every other layer slides.

use cortiq_cmf::NormStyle;

use super::GgufError;
use super::block::{self, Norms, Parts};
use super::decoder::{Family, Model, Source};
use super::gemma;
use super::hyper::HeadKeys;

pub(super) const FAMILY: Family = Family {
    arch: "gemma2",
    heads: HeadKeys::Uniform,
    reads: &["attn_logit_softcapping", "final_logit_softcapping"],
    build,
};

/// Layers of the 27B model.
const LAYERS_27B: usize = 46;
/// Every second layer is global.
const PERIOD: usize = 2;

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let keys = &source.keys;
    let mut arch = gemma::arch(source, "gemma2", source.rope_scaling()?)?;
    arch.query_pre_attn_scalar = Some(gemma::query_scale(source, LAYERS_27B));
    arch.attn_logit_softcapping = keys.cap("attn_logit_softcapping")?;
    arch.final_logit_softcapping = keys.cap("final_logit_softcapping")?;
    let slides = keys.sliding_layers(source.hyper.layers, PERIOD)?;
    if let Some(window) = keys.window()?
        && slides.contains(&true)
    {
        arch.sliding_window = Some(window);
        if slides.contains(&false) {
            arch.sliding_layers = Some(slides);
        }
    }
    let mut plan = source.plan("output_norm.weight", NormStyle::Gemma);
    let parts = Parts { norms: Norms::Sandwich, offset_norms: true, ..Parts::default() };
    block::layers(source, &mut plan, &parts, None)?;
    Ok(Model { arch, plan, notes: Vec::new() })
}
