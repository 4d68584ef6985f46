//! The smaller objects of the header, docs/cmf-format.md §3.7 to §3.12 and the additions.

use serde::{Deserialize, Serialize};

/// Chat template and special tokens, §3.7.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TokenizerConfig {
    /// Jinja source of the chat template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub chat_template: Option<String>,
    /// Tokens that end a generation.
    #[serde(default)]
    pub eos_token_ids: Vec<u32>,
    /// Token that begins a text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bos_token_id: Option<u32>,
    /// Padding token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pad_token_id: Option<u32>,
}

/// hash64 of the optional sections as 16 hex digits, §3.8. The writer fills this in.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SectionHashes {
    /// Hash of the masks section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masks: Option<String>,
    /// Hash of the vocab section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab: Option<String>,
    /// Hash of the sparse index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
}

/// One registered skill, §3.9.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SkillRecord {
    /// Part of the tensor names: `skill.{id}.{name}`.
    pub id: String,
    /// Name for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Layers it replaces; informational.
    #[serde(default)]
    pub layers: Vec<usize>,
    /// How to notice that the skill fits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selection: Option<SkillSelection>,
    /// Task of the input mask that belongs to it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_mask_task: Option<String>,
    /// Free-form quality record.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quality: Option<serde_json::Value>,
}

/// Subspace that decides whether a skill fits, §3.10.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SkillSelection {
    /// `mse`.
    pub metric: String,
    /// Layer whose output is compared.
    pub phi_layer: usize,
    /// base64 of `hidden_size` f16 values.
    pub mean: String,
    /// base64 of `rank * hidden_size` f16 values, row-major.
    pub basis: String,
    /// Rows of the basis.
    pub rank: usize,
}

/// Coordinates of one shard, §3.11.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardInfo {
    /// 1-based number.
    pub no: usize,
    /// Number of shards.
    pub count: usize,
}

/// Calibrated temperature, §3.12.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// Divisor of the logits.
    pub temperature: f32,
    /// Expected calibration error without it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ece_before: Option<f32>,
    /// Expected calibration error with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ece_after: Option<f32>,
}

/// Addition: sampling defaults that came with the model (§3.14).
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct GenerationDefaults {
    /// Divisor of the logits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f32>,
    /// Smallest set of tokens with this probability.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f32>,
    /// Tokens below this share of the best probability are dropped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_p: Option<f32>,
    /// Penalty on tokens that occurred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f32>,
    /// Number of best tokens kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<u32>,
    /// `false` asks for greedy decoding.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub do_sample: Option<bool>,
}

/// Addition: cryptographic digests as 64 lower-case hex digits (§8.1). The writer fills
/// this in when asked to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digests {
    /// Always `blake3`.
    pub algorithm: String,
    /// Digest of the directory.
    pub directory: String,
    /// Digest of each payload, in the order of the directory.
    pub tensors: Vec<String>,
    /// Digest of the masks section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub masks: Option<String>,
    /// Digest of the vocab section.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vocab: Option<String>,
    /// Digest of the sparse index.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub index: Option<String>,
}
