//! Architecture `gemma3`, the text part: as `gemma2` with norms on q and k; most layers slide, and those have a rotary
//! base of their own, which is never scaled.

use cortiq_cmf::{ModelArch, NormStyle};

use super::GgufError;
use super::block::{self, Norms, Parts, QkNorm};
use super::decoder::{Family, Model, Source};
use super::gemma;
use super::hyper::HeadKeys;
use super::metadata::required;

pub(super) const FAMILY: Family =
    Family { arch: "gemma3", heads: HeadKeys::Uniform, reads: &["final_logit_softcapping"], build };

/// Layers of the 27B model.
const LAYERS_27B: usize = 62;
/// Every sixth layer is global.
const PERIOD: usize = 6;
/// Base of the sliding layers when the file does not say it.
const LOCAL_BASE: f64 = 10_000.0;

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let keys = &source.keys;
    let mut arch = gemma::arch(source, "gemma3", source.rope_scaling()?)?;
    arch.query_pre_attn_scalar = Some(gemma::query_scale(source, LAYERS_27B));
    arch.final_logit_softcapping = keys.cap("final_logit_softcapping")?;
    arch.rope_local_base_freq = Some(keys.positive("rope.freq_base_swa", Some(LOCAL_BASE))?);
    let slides = keys.sliding_layers(source.hyper.layers, PERIOD)?;
    let window = required(&keys.key("attention.sliding_window"), keys.window()?)?;
    set_local(&mut arch, window, slides);
    let mut plan = source.plan("output_norm.weight", NormStyle::Gemma);
    let parts = Parts { norms: Norms::Sandwich, offset_norms: true, qk_norm: QkNorm::Head, ..Parts::default() };
    block::layers(source, &mut plan, &parts, None)?;
    Ok(Model { arch, plan, notes: Vec::new() })
}

/// Says which layers slide: by a period if there is one, else by a list.
fn set_local(arch: &mut ModelArch, window: usize, slides: Vec<bool>) {
    arch.sliding_window = Some(window);
    let first_global = slides.iter().position(|&slides| !slides).map_or(PERIOD, |layer| layer + 1);
    let has_period =
        |period: usize| slides.iter().enumerate().all(|(layer, &slides)| slides != (layer + 1).is_multiple_of(period));
    arch.sliding_window_pattern = [PERIOD, first_global].into_iter().find(|&period| has_period(period));
    if arch.sliding_window_pattern.is_none() {
        arch.sliding_layers = Some(slides);
    }
}
