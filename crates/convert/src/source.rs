//! The common form that every importer produces and that the pipeline writes.

use std::collections::BTreeMap;

use cortiq_cmf::Header;

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
}
