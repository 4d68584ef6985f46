//! Qwen3-Next: the hybrid decoder with experts; the projections of the delta net are grouped by key head.

use std::ops::Range;

use cortiq_cmf::ModelArch;

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::INTERMEDIATE;
use crate::hf::family::{Family, Layout, Mapping, Piece};
use crate::hf::hybrid::{self, HybridConfig};
use crate::hf::moe::{self, MoeDefaults};

pub(crate) const FAMILY: Family =
    Family { name: "qwen3_next", model_types: &["qwen3_next"], architectures: &["Qwen3NextForCausalLM"], read, rename };

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let defaults =
        MoeDefaults { num_experts: 512, top_k: 10, intermediate_size: 512, shared: Some(512), norm_topk_prob: true };
    let intermediate_size = config.int("intermediate_size", INTERMEDIATE)?.unwrap_or(5632);
    let hybrid = HybridConfig::read(config, intermediate_size)?;
    let sparse = moe::qwen_sparse_layers(config, hybrid.num_layers())?;
    // 0 switches the experts off.
    let dense = config.int("num_experts", 0..=1 << 20)? == Some(0);
    let moe = if dense { None } else { Some(moe::read_qwen(config, &defaults)?) };
    Ok(hybrid.layout("qwen3_next", moe, &sparse))
}

/// Cuts the grouped projections, then maps names as in the other hybrid families.
fn rename(name: &str, arch: &ModelArch) -> Mapping {
    let name = hybrid::canonical(name);
    let pieces = if let Some(stem) = name.strip_suffix("in_proj_qkvz.weight") {
        qkvz(stem, arch)
    } else if let Some(stem) = name.strip_suffix("in_proj_ba.weight") {
        ba(stem, arch)
    } else {
        None
    };
    pieces.map_or_else(|| hybrid::rename(&name, arch), Mapping::Split)
}

/// `[key heads][q | k | v of its value heads | z of its value heads]`.
fn qkvz(stem: &str, arch: &ModelArch) -> Option<Vec<Piece>> {
    let (key_heads, group) = groups(arch)?;
    let (key_dim, value_dim) = (arch.linear_key_head_dim? as u64, arch.linear_value_head_dim? as u64);
    let values = group * value_dim;
    let part = |start, len| rows(key_heads, 2 * key_dim + 2 * values, start, len);
    let qkv = [part(0, key_dim), part(key_dim, key_dim), part(2 * key_dim, values)].concat();
    Some(vec![
        Piece { name: format!("{stem}in_proj_qkv.weight"), rows: qkv },
        Piece { name: format!("{stem}in_proj_z.weight"), rows: part(2 * key_dim + values, values) },
    ])
}

/// `[key heads][b | a]`, each of its value heads.
fn ba(stem: &str, arch: &ModelArch) -> Option<Vec<Piece>> {
    let (key_heads, group) = groups(arch)?;
    Some(vec![
        Piece { name: format!("{stem}in_proj_b.weight"), rows: rows(key_heads, 2 * group, 0, group) },
        Piece { name: format!("{stem}in_proj_a.weight"), rows: rows(key_heads, 2 * group, group, group) },
    ])
}

/// Key heads, and value heads per key head.
fn groups(arch: &ModelArch) -> Option<(u64, u64)> {
    let (key_heads, value_heads) = (arch.linear_num_key_heads? as u64, arch.linear_num_value_heads? as u64);
    Some((key_heads, value_heads.checked_div(key_heads)?))
}

/// `len` rows from `start` on of each of `count` blocks of `stride` rows.
fn rows(count: u64, stride: u64, start: u64, len: u64) -> Vec<Range<u64>> {
    (0..count).map(|block| block * stride + start..block * stride + start + len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grouped_projections_are_ungrouped() {
        let arch = ModelArch {
            linear_num_key_heads: Some(2),
            linear_num_value_heads: Some(4),
            linear_key_head_dim: Some(3),
            linear_value_head_dim: Some(5),
            ..ModelArch::default()
        };
        let pieces = |name: &str| match rename(name, &arch) {
            Mapping::Split(pieces) => pieces,
            other => panic!("{other:?}"),
        };
        // A group: q 0..3, k 3..6, v 6..16, z 16..26.
        let found = pieces("model.layers.1.linear_attn.in_proj_qkvz.weight");
        assert_eq!(found[0].name, "model.layers.1.linear_attn.in_proj_qkv.weight");
        assert_eq!(found[0].rows, [0..3, 26..29, 3..6, 29..32, 6..16, 32..42]);
        assert_eq!(
            found[1],
            Piece { name: "model.layers.1.linear_attn.in_proj_z.weight".to_owned(), rows: vec![16..26, 42..52] }
        );
        let found = pieces("model.layers.1.linear_attn.in_proj_ba.weight");
        assert_eq!(
            (found[0].name.as_str(), found[1].name.as_str()),
            ("model.layers.1.linear_attn.in_proj_b.weight", "model.layers.1.linear_attn.in_proj_a.weight")
        );
        assert_eq!((&found[0].rows, &found[1].rows), (&vec![0..2, 4..6], &vec![2..4, 6..8]));
    }
}
