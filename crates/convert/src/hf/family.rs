//! The registry of model families and what a family file hands over.

use std::ops::Range;

use cortiq_cmf::ModelArch;

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::{
    deepseek_v3, gemma, gemma2, gemma3, gemma4, lfm2, lfm2_moe, llama, mistral, mixtral, olmo2, phi3, qwen2, qwen2_moe,
    qwen3, qwen3_5, qwen3_5_moe, qwen3_moe, qwen3_next, smollm3,
};

/// One model family: how its configuration and its tensor names are read.
pub(crate) struct Family {
    /// Short name, for messages.
    pub(crate) name: &'static str,
    /// Values of `model_type`.
    pub(crate) model_types: &'static [&'static str],
    /// Values of `architectures`.
    pub(crate) architectures: &'static [&'static str],
    /// Reads the configuration.
    pub(crate) read: fn(&Object<'_>) -> Result<Layout, ConvertError>,
    /// Maps a tensor name of the checkpoint to what becomes of it.
    pub(crate) rename: fn(&str, &ModelArch) -> Mapping,
}

/// All families, see docs/adding-a-model-family.md.
pub(crate) const FAMILIES: [Family; 20] = [
    deepseek_v3::FAMILY,
    gemma::FAMILY,
    gemma2::FAMILY,
    gemma3::FAMILY,
    gemma4::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    llama::FAMILY,
    mistral::FAMILY,
    mixtral::FAMILY,
    olmo2::FAMILY,
    phi3::FAMILY,
    qwen2::FAMILY,
    qwen2_moe::FAMILY,
    qwen3::FAMILY,
    qwen3_5::FAMILY,
    qwen3_5_moe::FAMILY,
    qwen3_moe::FAMILY,
    qwen3_next::FAMILY,
    smollm3::FAMILY,
];

/// What a family makes of a configuration.
#[derive(Debug)]
pub(crate) struct Layout {
    /// The header's description of the network.
    pub(crate) arch: ModelArch,
    /// All tensors that the network needs, under canonical names. Those below [`OPTIONAL`] are all in the
    /// checkpoint or none is; without them `arch.mtp` is dropped.
    pub(crate) tensors: Vec<Expected>,
}

/// The block of multi-token prediction: configurations do not say whether the checkpoint has it.
pub(crate) const OPTIONAL: &str = "model.mtp.";

/// A tensor that must be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Expected {
    /// Canonical name.
    pub(crate) name: String,
    /// Shape; matrices are `[out, in]`.
    pub(crate) shape: Vec<u64>,
}

/// What becomes of a tensor of the checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Mapping {
    /// It is stored under this canonical name.
    Keep(String),
    /// It is stored under each of these canonical names.
    Copies(Vec<String>),
    /// Its rows are handed out to several tensors; every row goes to exactly one.
    Split(Vec<Piece>),
    /// It is left out, for this reason.
    Skip(&'static str),
}

/// Some rows of a tensor of the checkpoint, as a tensor of its own.
///
/// A tensor of rank above 2 counts as a matrix: its last dimension is a row, all others together number the rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Canonical name.
    pub(crate) name: String,
    /// Rows of the source, in the order in which they follow each other here.
    pub(crate) rows: Vec<Range<u64>>,
}

impl Piece {
    /// The rows `rows` under `name`.
    pub(crate) fn new(name: impl Into<String>, rows: Range<u64>) -> Self {
        Self { name: name.into(), rows: vec![rows] }
    }

    /// Number of rows.
    pub(crate) fn height(&self) -> u64 {
        self.rows.iter().fold(0, |sum, rows| sum.saturating_add(rows.end.saturating_sub(rows.start)))
    }
}

/// Tensors of vision towers and projectors in published multimodal layouts.
const VISION: [&str; 10] = [
    "visual.",
    "model.visual.",
    "vision_tower.",
    "model.vision_tower.",
    "vision_model.",
    "model.vision_model.",
    "multi_modal_projector.",
    "model.multi_modal_projector.",
    "embed_vision.",
    "model.embed_vision.",
];

/// Tensors that hold nothing the configuration does not say.
const DERIVED: [&str; 2] = ["rotary_emb.inv_freq", "masked_bias"];

/// The decision about names that mean the same in every family, if `name` is one.
pub(crate) fn common_mapping(name: &str) -> Option<Mapping> {
    if VISION.iter().any(|prefix| name.starts_with(prefix)) {
        Some(Mapping::Skip("part of the vision tower"))
    } else if DERIVED.iter().any(|suffix| name.ends_with(suffix)) {
        Some(Mapping::Skip("follows from the configuration"))
    } else {
        None
    }
}

/// The family of a checkpoint, by `model_type` and `architectures`.
///
/// # Errors
/// [`ConvertError::UnsupportedFamily`] with the name the checkpoint uses.
pub(crate) fn find(config: &Object<'_>, text: &Object<'_>) -> Result<&'static Family, ConvertError> {
    find_in(&FAMILIES, config, text)
}

fn find_in(
    families: &'static [Family],
    config: &Object<'_>,
    text: &Object<'_>,
) -> Result<&'static Family, ConvertError> {
    let architecture = config.strings("architectures")?.and_then(|names| names.first().copied());
    let model_type = match config.string("model_type")? {
        Some(name) => Some(name),
        None => text.string("model_type")?,
    };
    let by_type = |name: &str| families.iter().find(|f| f.model_types.contains(&name));
    let by_architecture = |name: &str| families.iter().find(|f| f.architectures.contains(&name));
    let (found, name) = match (model_type, architecture) {
        (Some(name), None) => (by_type(name), name),
        (None, Some(name)) => (by_architecture(name), name),
        // Both must agree: a classifier built on a known model is not that model.
        (Some(name), Some(head)) => match by_type(name) {
            Some(family) if !family.architectures.contains(&head) => (None, head),
            found => (found, name),
        },
        (None, None) => return Err(ConvertError::invalid("model_type", "is missing, and so is `architectures`")),
    };
    found.ok_or_else(|| ConvertError::UnsupportedFamily { family: name.to_owned() })
}
