//! The header JSON, docs/cmf-format.md §3: types, spelling, order of the keys.
//!
//! Unknown keys are ignored on reading; keys are written in the order of the fields.

mod arch;
mod check;
mod records;
mod rope;

pub use arch::{LayerType, LinearCore, Mla, ModelArch, Moe, Mtp, NormStyle};
pub use check::{MAX_EXPERTS, MAX_HEAD_DIM, MAX_HEADS, MAX_HIDDEN, MAX_LAYERS, MAX_POSITIONS, MAX_VOCAB};
pub use records::{
    Calibration, Digests, GenerationDefaults, SectionHashes, ShardInfo, SkillRecord, SkillSelection, TokenizerConfig,
};
pub use rope::RopeScaling;

use crate::CmfError;
use serde::{Deserialize, Serialize};

/// Longest header that is read, in bytes. JSON can need many times its length in memory
/// once parsed; the largest real headers (digests of 100,000 tensors) stay below 10 MB.
pub const MAX_HEADER_LEN: u64 = 256 << 20;

/// Names that `header.extensions` may list, docs/cmf-format.md §2.1.
pub const KNOWN_EXTENSIONS: [&str; 12] = [
    "rope_scaling",
    "linear_bias",
    "sliding_layers",
    "attn_softcap",
    "rope_layers",
    "rope_interleaved",
    "mla",
    "router_groups",
    "post_norm",
    "wide_qk_norm",
    "plain_shared_expert",
    "mtp_block",
];

/// Label of the quantisation that was asked for at conversion. Informational: the
/// directory says what each tensor really is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum QuantType {
    /// 8 bits, a scale per row.
    #[serde(rename = "Q8_ROW")]
    Q8Row,
    /// 4 bits; also written for `q4_tiled`.
    #[serde(rename = "Q4_BLOCK")]
    Q4Block,
    /// 8 bits, scales per row and column.
    #[serde(rename = "Q8_2F")]
    Q8_2f,
    /// Variable width; also written for `q1`, `q1s` and `q1t`.
    #[serde(rename = "VBIT")]
    Vbit,
    /// bfloat16.
    #[serde(rename = "BF16")]
    Bf16,
    /// binary16.
    #[serde(rename = "F16")]
    F16,
    /// 32-bit floats.
    #[serde(rename = "F32")]
    F32,
}

/// The whole header.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Header {
    /// Always `cmf`.
    #[serde(default = "format_name")]
    pub format: String,
    /// Always 2.
    pub version: u32,
    /// The network.
    pub arch: ModelArch,
    /// Label of the quantisation.
    pub quant_type: QuantType,
    /// Where the file comes from, free-form (§3.13). Build it with [`sorted_json`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<serde_json::Value>,
    /// Chat template and special tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokenizer_config: Option<TokenizerConfig>,
    /// hash64 of the optional sections.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub section_hashes: Option<SectionHashes>,
    /// Registered skills (§12).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub skills: Vec<SkillRecord>,
    /// Coordinates of a sharded model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shard: Option<ShardInfo>,
    /// Calibrated temperature.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration: Option<Calibration>,
    /// Sampling defaults that the model's authors recommend.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<GenerationDefaults>,
    /// Names a reader must know to run the file correctly (§2.1).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub extensions: Vec<String>,
    /// Cryptographic digests (§8.1).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digests: Option<Digests>,
}

fn format_name() -> String {
    "cmf".into()
}

impl Header {
    /// A header with the two required parts and nothing else.
    #[must_use]
    pub fn new(arch: ModelArch, quant_type: QuantType) -> Self {
        Self {
            format: format_name(),
            version: 2,
            arch,
            quant_type,
            provenance: None,
            tokenizer_config: None,
            section_hashes: None,
            skills: Vec::new(),
            shard: None,
            calibration: None,
            generation: None,
            extensions: Vec::new(),
            digests: None,
        }
    }

    /// Parses header JSON. The values are not checked, see [`Header::check`].
    ///
    /// # Errors
    /// [`CmfError::HeaderJson`].
    pub fn from_json(bytes: &[u8]) -> Result<Self, CmfError> {
        serde_json::from_slice(bytes).map_err(|e| CmfError::HeaderJson(e.to_string()))
    }

    /// Compact JSON with the keys in the order of §3.
    ///
    /// # Errors
    /// [`CmfError::HeaderJson`].
    pub fn to_json(&self) -> Result<Vec<u8>, CmfError> {
        serde_json::to_vec(self).map_err(|e| CmfError::HeaderJson(e.to_string()))
    }

    /// Extensions that the header's own keys make necessary. Those about tensors (§2.1) cannot be seen here.
    #[must_use]
    pub fn implied_extensions(&self) -> Vec<&'static str> {
        let arch = &self.arch;
        let groups = arch.moe.as_ref().and_then(|moe| moe.n_group);
        let uses = [
            ("rope_scaling", arch.rope_scaling.is_some()),
            ("sliding_layers", arch.sliding_layers.is_some()),
            ("attn_softcap", arch.attn_logit_softcapping.is_some()),
            ("rope_layers", arch.rope_layers.is_some()),
            ("rope_interleaved", arch.rope_interleaved),
            ("mla", arch.mla.is_some()),
            ("router_groups", groups.is_some()),
        ];
        uses.into_iter().filter(|(_, used)| *used).map(|(name, _)| name).collect()
    }
}

/// The same JSON with the keys of every object in alphabetical order, whatever map type
/// `serde_json` was built with. Provenance is written that way (§3.13).
#[must_use]
pub fn sorted_json(value: serde_json::Value) -> serde_json::Value {
    use serde_json::Value;
    match value {
        Value::Object(map) => {
            let sorted: std::collections::BTreeMap<String, Value> =
                map.into_iter().map(|(k, v)| (k, sorted_json(v))).collect();
            Value::Object(sorted.into_iter().collect())
        }
        Value::Array(items) => Value::Array(items.into_iter().map(sorted_json).collect()),
        other => other,
    }
}
