//! Architecture `qwen35`: dense Qwen 3.5 and later. Everything of the delta net that belongs to value heads is stored
//! in tiles: the first value heads of all key heads, then the second ones and so on. That is undone here.
//!
//! `rope.dimension_sections` only matters for images: the positions of text are the same in all sections.

use super::GgufError;
use super::decoder::{Family, Model, Source};
use super::hybrid::{self, DeltaNet};
use super::hyper::HeadKeys;
use super::plan::{Block, Rows, Tiles, Values};

pub(super) const FAMILY: Family =
    Family { arch: "qwen35", heads: HeadKeys::Uniform, reads: &["nextn_predict_layers"], build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    hybrid::model(source, "qwen3_5_text", None, projections)
}

/// The tensors of a delta net, brought to canonical order.
pub(super) fn projections(source: &Source<'_>, block: &mut Block<'_>, delta: &DeltaNet) -> Result<(), GgufError> {
    let hidden = source.hidden();
    let (channels, values, heads) = (delta.channels(), delta.values(), delta.value_heads);
    let tiles = |first, head_rows| Tiles { first, key_heads: delta.key_heads, group: delta.group(), head_rows };
    let queries_and_keys = 2 * delta.keys();
    let by_channel = Rows::Tiles(tiles(queries_and_keys, delta.value_dim));
    let by_value = Rows::Tiles(tiles(0, delta.value_dim));
    let by_head = Rows::Tiles(tiles(0, 1));
    block.add("attn_qkv.weight", "linear_attn.in_proj_qkv.weight", &[channels, hidden]).rows(by_channel.clone());
    block.add("attn_gate.weight", "linear_attn.in_proj_z.weight", &[values, hidden]).rows(by_value);
    for (gguf, name) in [("ssm_beta.weight", "b"), ("ssm_alpha.weight", "a")] {
        block.add(gguf, &format!("linear_attn.in_proj_{name}.weight"), &[heads, hidden]).rows(by_head.clone());
    }
    hybrid::convolution(block, delta).rows(by_channel);
    hybrid::decay(block, delta).rows(by_head.clone());
    block.add("ssm_dt.bias", "linear_attn.dt_bias", &[heads]).rows(by_head);
    block
        .add("ssm_out.weight", "linear_attn.out_proj.weight", &[hidden, values])
        .values(Values::TiledColumns(tiles(0, delta.value_dim)));
    Ok(())
}
