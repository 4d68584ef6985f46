//! Architecture `qwen3next`: the projections of the delta net are `attn_qkv` and `attn_gate` with the heads in
//! canonical order (`ssm_in` in the first files, grouped by key head) and `ssm_ba`, grouped by key head. The first
//! files have no multi-token prediction.

use super::GgufError;
use super::decoder::{Family, Model, Source};
use super::hybrid::{self, DeltaNet};
use super::hyper::HeadKeys;
use super::moe;
use super::plan::{Block, Group, Rows};

pub(super) const FAMILY: Family =
    Family { arch: "qwen3next", heads: HeadKeys::Uniform, reads: &super::qwen35moe::KEYS, build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let moe = moe::read(source, &moe::Defaults { norm: true, sigmoid: false, ffn_width: false })?;
    hybrid::model(source, "qwen3_next", moe, projections)
}

fn projections(source: &Source<'_>, block: &mut Block<'_>, delta: &DeltaNet) -> Result<(), GgufError> {
    let hidden = source.hidden();
    let (channels, values, group) = (delta.channels(), delta.values(), delta.group());
    let (qkv, z) = ("linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight");
    if source.has(&format!("{}ssm_in.weight", block.gguf)) {
        // Per key head: q, k, v and z of its value heads.
        let (key, value) = (delta.key_dim, group * delta.value_dim);
        let part = |start, len| Group { count: delta.key_heads, stride: 2 * key + 2 * value, start, len };
        let stored = [channels + values, hidden];
        let parts = vec![part(0, key), part(key, key), part(2 * key, value)];
        block.add("ssm_in.weight", qkv, &[channels, hidden]).stored(&stored).rows(Rows::Grouped(parts));
        let parts = vec![part(2 * key + value, value)];
        block.add("ssm_in.weight", z, &[values, hidden]).stored(&stored).rows(Rows::Grouped(parts));
    } else {
        block.add("attn_qkv.weight", qkv, &[channels, hidden]);
        block.add("attn_gate.weight", z, &[values, hidden]);
    }
    for (name, start) in [("b", 0), ("a", group)] {
        let part = Group { count: delta.key_heads, stride: 2 * group, start, len: group };
        block
            .add("ssm_ba.weight", &format!("linear_attn.in_proj_{name}.weight"), &[delta.value_heads, hidden])
            .stored(&[2 * delta.value_heads, hidden])
            .rows(Rows::Grouped(vec![part]));
    }
    hybrid::convolution(block, delta);
    hybrid::decay(block, delta);
    block.add("ssm_dt.bias", "linear_attn.dt_bias", &[delta.value_heads]);
    block.add("ssm_out.weight", "linear_attn.out_proj.weight", &[hidden, values]);
    Ok(())
}
