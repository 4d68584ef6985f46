//! Task masks: what one leaves of each layer (docs/behaviour.md §8).

use cortiq_cmf::Mask;

use crate::{FfnSpec, LayerSpec, MixerSpec, ModelError, ModelSpec};

/// What a mask leaves of a layer that is on; a missing list means everything. 1 is on, 0 is off.
#[derive(Default)]
pub(super) struct LayerMask {
    /// By query head.
    pub(super) heads: Option<Vec<f32>>,
    /// By neuron of the FFN.
    pub(super) neurons: Option<Vec<f32>>,
}

impl LayerMask {
    /// What `mask` leaves of layer `index`; nothing when it switches the whole layer off.
    pub(super) fn read(mask: &Mask, index: usize, layer: &LayerSpec) -> Result<Option<Self>, ModelError> {
        if !mask.layer(index) {
            return Ok(None);
        }
        Ok(Some(Self { heads: heads(mask, index, layer)?, neurons: neurons(mask, index, layer)? }))
    }
}

/// Checks that a mask has as many layers as the model.
pub(super) fn check(mask: &Mask, spec: &ModelSpec) -> Result<(), ModelError> {
    let (ours, theirs) = (spec.layers.len(), mask.shape().num_layers);
    if ours == theirs { Ok(()) } else { Err(misfit(mask, format!("it is for {theirs} layers, the model has {ours}"))) }
}

fn heads(mask: &Mask, index: usize, layer: &LayerSpec) -> Result<Option<Vec<f32>>, ModelError> {
    let count = mask.shape().num_heads;
    let in_use = multipliers(count, |head| mask.head(index, head));
    let (kind, heads) = match &layer.mixer {
        MixerSpec::Attention(spec) => ("attention", spec.heads),
        MixerSpec::Mla(spec) => ("attention", spec.heads),
        MixerSpec::GatedDelta(_) => ("a gated delta net", 0),
        MixerSpec::ShortConv(_) => ("a short convolution", 0),
    };
    match in_use {
        _ if heads > 0 && heads != count => {
            Err(misfit(mask, format!("in layer {index} it is for {count} query heads, the model has {heads}")))
        }
        Some(_) if heads == 0 => {
            let reason =
                format!("it switches heads of layer {index} off, but that is {kind}, which has no query heads");
            Err(misfit(mask, reason))
        }
        in_use => Ok(in_use),
    }
}

fn neurons(mask: &Mask, index: usize, layer: &LayerSpec) -> Result<Option<Vec<f32>>, ModelError> {
    let count = mask.shape().intermediate_size;
    let in_use = multipliers(count, |neuron| mask.neuron(index, neuron));
    match (&layer.ffn, in_use) {
        (FfnSpec::Dense { intermediate_size, .. }, _) if *intermediate_size != count => {
            let ours = *intermediate_size;
            Err(misfit(mask, format!("in layer {index} it is for {count} FFN neurons, the model has {ours}")))
        }
        (FfnSpec::Moe(_), Some(_)) => Err(misfit(
            mask,
            format!("it switches neurons of layer {index} off, but that is a mixture of experts, which no mask covers"),
        )),
        (_, in_use) => Ok(in_use),
    }
}

/// 1 for what is on and 0 for what is off; nothing when all of it is on.
fn multipliers(count: usize, on: impl Fn(usize) -> bool) -> Option<Vec<f32>> {
    let values: Vec<f32> = (0..count).map(|i| f32::from(u8::from(on(i)))).collect();
    values.contains(&0.0).then_some(values)
}

fn misfit(mask: &Mask, reason: String) -> ModelError {
    ModelError::Mask { task: mask.name.clone(), reason }
}
