//! GGUF import: container, tensor types, tokenizer, and the mapping of architectures.
//!
//! Owns: reading GGUF 2 and 3 files ([`GgufFile`]), expanding their tensor types to f32
//! ([`dequantize`]), rebuilding `tokenizer.json` from the metadata ([`tokenizer`]) and, in one file per architecture,
//! what its keys and tensors are canonically. Entry point: [`load`].
//!
//! The conventions of the architectures (names, reordered rows, changed values) are those of the public converters
//! that write GGUF files; a file that departs from them is refused by name.
//!
//! Must not know: how the container that is written looks, or in which dtypes tensors are stored.

mod block;
mod bytes;
mod decoder;
mod deepseek2;
mod dequant;
mod error;
mod gemma;
mod gemma2;
mod gemma3;
mod ggml_type;
mod hybrid;
mod hyper;
mod keys;
mod lfm2;
mod lfm2moe;
mod llama;
pub mod metadata;
mod moe;
mod olmo2;
mod phi3;
mod plan;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
pub mod reader;
mod rope;
mod smollm3;
pub mod tokenizer;
mod values;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

pub use dequant::dequantize;
pub use error::GgufError;
pub use ggml_type::{GgmlType, type_name};
pub use reader::GgufFile;

use crate::ImportedModel;
use decoder::Family;
use metadata::required;

const KEY_ARCHITECTURE: &str = "general.architecture";
const KEY_BLOCK_LAYOUTS: &str = "general.quantization_version";
/// The generation of block layouts that [`dequantize`] reads.
const BLOCK_LAYOUTS: u64 = 2;

/// Every architecture that can be imported.
const FAMILIES: [&Family; 17] = [
    &llama::FAMILY,
    &qwen2::FAMILY,
    &qwen2moe::FAMILY,
    &qwen3::FAMILY,
    &qwen3moe::FAMILY,
    &qwen3next::FAMILY,
    &qwen35::FAMILY,
    &qwen35moe::FAMILY,
    &gemma::FAMILY,
    &gemma2::FAMILY,
    &gemma3::FAMILY,
    &phi3::FAMILY,
    &olmo2::FAMILY,
    &smollm3::FAMILY,
    &deepseek2::FAMILY,
    &lfm2::FAMILY,
    &lfm2moe::FAMILY,
];

/// The architectures that can be imported, as `general.architecture` spells them.
pub fn architectures() -> Vec<&'static str> {
    FAMILIES.iter().map(|family| family.arch).collect()
}

/// Opens the GGUF file `path` and describes its model in the common form of the importers. The
/// tensors stay in the mapped file and are expanded one by one, when their values are asked for.
///
/// # Errors
/// [`GgufError`] naming the key, tensor or part of the file that is damaged or not supported.
pub fn load(path: &Path) -> Result<ImportedModel, GgufError> {
    import(GgufFile::open(path)?)
}

/// As [`load`], for a file that is already parsed.
///
/// # Errors
/// As for [`load`].
pub fn import(file: GgufFile) -> Result<ImportedModel, GgufError> {
    let name = required(KEY_ARCHITECTURE, file.metadata().string(KEY_ARCHITECTURE)?)?;
    match file.metadata().unsigned(KEY_BLOCK_LAYOUTS)? {
        None | Some(BLOCK_LAYOUTS) => {}
        Some(other) => return Err(GgufError::unsupported_key(KEY_BLOCK_LAYOUTS, other, "2 is")),
    }
    let family = FAMILIES
        .into_iter()
        .find(|family| family.arch == name)
        .ok_or_else(|| GgufError::Architecture { arch: name.to_owned(), supported: architectures().join(", ") })?;
    decoder::import(&Arc::new(file), family)
}
