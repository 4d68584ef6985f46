//! GGUF import: container, tensor types, tokenizer, and the mapping of architectures.
//!
//! Owns: reading GGUF 2 and 3 files ([`GgufFile`]), expanding their tensor types to f32
//! ([`dequantize`]), rebuilding `tokenizer.json` from the metadata ([`tokenizer`]) and naming the
//! tensors of the architectures llama, qwen2 and qwen3 canonically. Entry point: [`load`].
//!
//! Must not know: how the container that is written looks, or in which dtypes tensors are stored.

mod bytes;
mod decoder;
mod dequant;
mod error;
mod ggml_type;
mod hyper;
mod llama;
pub mod metadata;
mod qwen2;
mod qwen3;
pub mod reader;
mod rope;
pub mod tokenizer;

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
const FAMILIES: [&Family; 3] = [&llama::FAMILY, &qwen2::FAMILY, &qwen3::FAMILY];

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
        .ok_or_else(|| GgufError::Architecture { arch: name.to_owned() })?;
    decoder::import(&Arc::new(file), family)
}
