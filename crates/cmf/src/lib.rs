//! The CMF v2 container: one file with the header, the tensors, the tokenizer and the masks
//! of a language model, made to be memory-mapped. docs/cmf-format.md describes the format;
//! comments in this crate cite its sections.
//!
//! Owns: envelope, header, directory, masks, sparse index, shards, skills lookup, hashes, the
//! streaming writer and `verify`. Entry points: [`CmfFile`] and [`CmfWriter`].
//! Every offset, length and index that comes from a file is checked here, once, so that the
//! crates above can rely on them.
//!
//! Must not know: how a payload decodes to numbers (`cortiq-quant`), what a network does with
//! it (`cortiq-model`), nor the environment.

mod directory;
mod dtype;
mod envelope;
mod error;
mod file;
mod hash;
mod header;
mod masks;
mod part;
mod payload;
mod shards;
mod source;
mod sparse_index;
mod verify;
mod writer;

pub use directory::TensorInfo;
pub use dtype::{Dtype, GROUP, element_count};
pub use envelope::{
    ENVELOPE_LEN, FEATURE_BINARY_MASKS, FEATURE_EXTENSIONS, FEATURE_QUANT_2F, FEATURE_TENSOR_DIR, Section,
};
pub use error::CmfError;
pub use file::CmfFile;
pub use hash::{blake3_hex, f16_to_f32, hash64};
pub use header::*;
pub use masks::{Mask, MaskCatalogue, MaskPriority, MaskQuality, MaskShape};
pub use shards::shard_file_name;
pub use sparse_index::{IndexEntry, SparseIndex};
pub use verify::{Check, Problem, VerifyReport};
pub use writer::{CmfWriter, Sections, TensorPlan, WriteOptions, WriteSummary};
