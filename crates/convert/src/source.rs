//! The common form that every importer produces and that the pipeline writes.

use std::collections::{BTreeMap, BTreeSet};

use cortiq_cmf::{Header, ModelArch};

use crate::ConvertError;

/// How a tensor's values are stored in the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NativeDtype {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// Any quantised form (GGUF block types); the values are already approximations.
    Quantised,
}

impl NativeDtype {
    /// Lower-case name, as the container's dtype table spells it; `quantised` for block types.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Quantised => "quantised",
        }
    }
}

/// Gives all values of one tensor, row-major, as f32.
pub type LoadFn = Box<dyn Fn() -> Result<Vec<f32>, ConvertError> + Send + Sync>;

/// One tensor of the source under its canonical name; the values are read on demand.
pub struct SourceTensor {
    /// Canonical (Hugging Face) name, e.g. `model.layers.0.self_attn.q_proj.weight`.
    pub name: String,
    /// Shape; matrices are `[out, in]`.
    pub shape: Vec<u32>,
    /// Precision of the values in the source.
    pub native: NativeDtype,
    /// Reads the values, row-major; as many as the product of `shape`.
    pub load: LoadFn,
}

impl std::fmt::Debug for SourceTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SourceTensor")
            .field("name", &self.name)
            .field("shape", &self.shape)
            .field("native", &self.native)
            .finish_non_exhaustive()
    }
}

impl SourceTensor {
    /// Number of values: the product of the shape (1 for a scalar), saturating.
    pub fn len(&self) -> u64 {
        self.shape.iter().fold(1u64, |n, &d| n.saturating_mul(u64::from(d)))
    }

    /// True when some dimension is 0.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A model as an importer hands it over: canonical header, canonical tensors, tokenizer.
#[derive(Debug)]
pub struct ImportedModel {
    /// Header with arch, tokenizer_config, generation and extensions filled in.
    /// `quant_type` and `provenance` are set by the pipeline.
    pub header: Header,
    /// All tensors, in the order the source has them; the policy decides the order in the output.
    pub tensors: Vec<SourceTensor>,
    /// `tokenizer.json`, verbatim, for the vocab section.
    pub tokenizer_json: Option<Vec<u8>>,
    /// What was skipped or changed, for the report.
    pub notes: Vec<String>,
}

impl ImportedModel {
    /// Lists in the header every extension that its arch or its tensors make necessary
    /// (docs/cmf-format.md §2.1). Idempotent.
    pub fn declare_extensions(&mut self) {
        let mut needed = self.header.implied_extensions();
        if has_linear_bias(self.tensors.iter().map(|t| t.name.as_str())) {
            needed.push("linear_bias");
        }
        if has_post_norm(&self.tensors) {
            needed.push("post_norm");
        }
        if self.tensors.iter().any(|t| is_wide_norm(t, &self.header.arch)) {
            needed.push("wide_qk_norm");
        }
        if has_plain_shared_expert(&self.tensors) {
            needed.push("plain_shared_expert");
        }
        if self.tensors.iter().any(|t| is_rich_mtp(t, &self.header.arch)) {
            needed.push("mtp_block");
        }
        for name in needed {
            if !self.header.extensions.iter().any(|listed| listed == name) {
                self.header.extensions.push(name.to_owned());
            }
        }
    }
}

/// True when some linear map has a bias that readers without the extension would not apply: any but
/// biases on all three of q, k and v.
fn has_linear_bias<'a>(names: impl Iterator<Item = &'a str>) -> bool {
    let mut qkv: BTreeMap<&str, u32> = BTreeMap::new();
    for name in names.filter(|n| n.ends_with("_proj.bias")) {
        let attention = name.rsplit_once(".self_attn.");
        match attention {
            Some((layer, "q_proj.bias" | "k_proj.bias" | "v_proj.bias")) => *qkv.entry(layer).or_default() += 1,
            _ => return true,
        }
    }
    qkv.values().any(|&count| count != 3)
}

/// True when a layer is normed after its mixer and its FFN and not before.
fn has_post_norm(tensors: &[SourceTensor]) -> bool {
    let with = |suffix| tensors.iter().filter_map(move |t| t.name.strip_suffix(suffix));
    let before: BTreeSet<&str> = with("input_layernorm.weight").collect();
    with("post_feedforward_layernorm.weight").any(|layer| !before.contains(layer))
}

/// True for a norm on queries that is longer than a head.
fn is_wide_norm(tensor: &SourceTensor, arch: &ModelArch) -> bool {
    let head_dim = arch.head_dim.max(arch.global_head_dim.unwrap_or(0));
    let wide = || tensor.shape.first().is_some_and(|&len| len as usize > head_dim);
    tensor.name.ends_with(".self_attn.q_norm.weight") && wide()
}

/// True when a shared expert has no gate.
fn has_plain_shared_expert(tensors: &[SourceTensor]) -> bool {
    let with = |suffix| tensors.iter().filter_map(move |t| t.name.strip_suffix(suffix));
    let gated: BTreeSet<&str> = with("mlp.shared_expert_gate.weight").collect();
    with("mlp.shared_expert.gate_proj.weight").any(|layer| !gated.contains(layer))
}

/// True for a tensor that makes the block of multi-token prediction more than a plain dense one: a query
/// projection with gates, or a router.
fn is_rich_mtp(tensor: &SourceTensor, arch: &ModelArch) -> bool {
    let Some(stem) = tensor.name.strip_prefix("model.mtp.layers.") else { return false };
    let queries = arch.num_attention_heads.saturating_mul(arch.head_dim);
    let gated = || tensor.shape.first().is_some_and(|&rows| rows as usize > queries);
    stem.ends_with(".mlp.gate.weight") || (stem.ends_with(".self_attn.q_proj.weight") && gated())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_bias_is_about_all_but_complete_qkv() {
        let l = |stems: &[&str]| {
            let names: Vec<String> = stems.iter().map(|s| format!("model.layers.0.{s}")).collect();
            has_linear_bias(names.iter().map(String::as_str))
        };
        let (q, k, v) = ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias");
        for (stems, expected) in [
            (vec![], false),
            (vec!["self_attn.q_proj.weight", "linear_attn.dt_bias", "mlp.expert_bias"], false),
            (vec![q, k, v], false),
            (vec![k], true),
            (vec![q, k], true),
            (vec![q, k, v, "self_attn.o_proj.bias"], true),
            (vec!["mlp.down_proj.bias"], true),
        ] {
            assert_eq!(l(&stems), expected, "{stems:?}");
        }
    }

    fn extensions(tensors: &[(&str, &[u32])]) -> Vec<String> {
        let arch = ModelArch { num_attention_heads: 2, head_dim: 4, ..ModelArch::default() };
        let tensors = tensors.iter().map(|(name, shape)| SourceTensor {
            name: (*name).to_owned(),
            shape: shape.to_vec(),
            native: NativeDtype::F32,
            load: Box::new(|| Ok(Vec::new())),
        });
        let header = Header::new(arch, cortiq_cmf::QuantType::F32);
        let mut model = ImportedModel { header, tensors: tensors.collect(), tokenizer_json: None, notes: Vec::new() };
        model.declare_extensions();
        model.header.extensions
    }

    #[test]
    fn tensors_that_need_extensions() {
        let gate = ("model.layers.0.mlp.shared_expert_gate.weight", [1, 8].as_slice());
        let shared = ("model.layers.0.mlp.shared_expert.gate_proj.weight", [4, 8].as_slice());
        let other = ("model.layers.1.mlp.shared_expert.gate_proj.weight", [4, 8].as_slice());
        assert!(extensions(&[gate, shared]).is_empty());
        assert_eq!(extensions(&[shared]), ["plain_shared_expert"]);
        assert_eq!(extensions(&[gate, shared, other]), ["plain_shared_expert"]);
        let queries = "model.mtp.layers.0.self_attn.q_proj.weight";
        assert!(extensions(&[(queries, &[8, 8]), ("model.layers.0.self_attn.q_proj.weight", &[16, 8])]).is_empty());
        assert_eq!(extensions(&[(queries, &[16, 8])]), ["mtp_block"]);
        assert_eq!(extensions(&[("model.mtp.layers.0.mlp.gate.weight", &[4, 8])]), ["mtp_block"]);
        let before = ("model.layers.0.input_layernorm.weight", [8].as_slice());
        let after = ("model.layers.0.post_feedforward_layernorm.weight", [8].as_slice());
        assert!(extensions(&[before, after]).is_empty());
        assert_eq!(extensions(&[after]), ["post_norm"]);
        for (length, expected) in [(4, &[][..]), (8, &["wide_qk_norm"][..])] {
            assert_eq!(extensions(&[("model.layers.0.self_attn.q_norm.weight", &[length])]), expected, "{length}");
        }
    }
}
