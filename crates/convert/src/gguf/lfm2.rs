//! Architecture `lfm2`: short gated convolutions among attention layers; a layer without key/value heads is a
//! convolution. The final norm is called `token_embd_norm`.

use cortiq_cmf::{LayerType, Moe, NormStyle};

use super::GgufError;
use super::block::{self, Parts, QkNorm};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;
use super::plan::Block;

pub(super) const FAMILY: Family = Family { arch: "lfm2", heads: HeadKeys::SomeLayers, reads: &[], build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    model(source, "lfm2", None)
}

/// The model with its dense FFNs or with experts where there is a router.
pub(super) fn model(source: &Source<'_>, arch_name: &str, moe: Option<Moe>) -> Result<Model, GgufError> {
    source.keys.refuse_window()?;
    let taps = source.keys.size("shortconv.l_cache")?;
    let mut arch = source.arch(arch_name, source.ffn()?, source.rope_scaling()?);
    arch.linear_conv_kernel_dim = Some(taps);
    let mut plan = source.plan("token_embd_norm.weight", NormStyle::Qwen);
    let parts = Parts { qk_norm: QkNorm::Head, ..Parts::default() };
    for (layer, kind) in arch.layer_types.iter_mut().enumerate() {
        let mut block = plan.block(layer, format!("model.layers.{layer}."));
        if source.has(&format!("blk.{layer}.shortconv.conv.weight")) {
            *kind = LayerType::ShortConv;
            convolution(&mut block, source.hidden(), taps as u64);
            block::norms(source, &mut block, &parts);
            block::feed_forward(source, &mut block, &parts, moe.as_ref())?;
        } else {
            block::attention_layer(source, &mut block, &parts, moe.as_ref())?;
        }
    }
    check_layers(source, &arch.layer_types)?;
    arch.moe = moe;
    Ok(Model { arch, plan, notes: Vec::new() })
}

fn convolution(block: &mut Block<'_>, hidden: u64, taps: u64) {
    block.add("shortconv.in_proj.weight", "short_conv.in_proj.weight", &[3 * hidden, hidden]);
    block.add("shortconv.conv.weight", "short_conv.conv.weight", &[hidden, 1, taps]).stored(&[hidden, taps]);
    block.add("shortconv.out_proj.weight", "short_conv.out_proj.weight", &[hidden, hidden]);
}

/// The tensors and the list of key/value heads must mean the same layers.
fn check_layers(source: &Source<'_>, layers: &[LayerType]) -> Result<(), GgufError> {
    let key = source.keys.key("attention.head_count_kv");
    let heads = match source.keys.metadata.get(&key) {
        Some(super::metadata::Value::Array(_)) => source.keys.metadata.integers(&key)?.unwrap_or_default(),
        _ => return Ok(()),
    };
    let differs = |(heads, kind): (&i64, &LayerType)| (*heads == 0) != (*kind == LayerType::ShortConv);
    match heads.iter().zip(layers).position(differs) {
        None => Ok(()),
        Some(layer) => Err(GgufError::bad_key(key, format!("does not fit the tensors of `blk.{layer}`"))),
    }
}
