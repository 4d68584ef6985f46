//! Import of Hugging Face checkpoints and GGUF files into the CMF container.
//!
//! Owns: reading `config.json`, safetensors, tokenizer files and GGUF; the mapping of each model
//! family to the canonical header and tensor names; the storage policy (which tensor gets which
//! dtype); the streaming pipeline that writes the output.
//!
//! Entry points: [`convert`] with an [`HfSource`], and [`import_gguf`].
//!
//! Must not know: executors, the engine, the environment (options come in as typed structs), and
//! how the container or the codecs lay out bytes (crates `cmf` and `quant`).

pub mod error;
mod files;
pub mod gguf;
pub mod hf;
mod names;
pub mod options;
pub mod pipeline;
pub mod policy;
pub mod report;
pub mod source;
mod tokenizer_json;

use std::path::Path;

pub use error::ConvertError;
pub use hf::{HfSource, HubOptions};
pub use options::ConvertOptions;
pub use policy::{Override, Policy};
pub use report::{ConvertReport, DtypeTotal, NoProgress, Progress, StoredRow};
pub use source::{ImportedModel, LoadFn, NativeDtype, SourceTensor};

/// Converts a Hugging Face checkpoint to one CMF file at `output`.
///
/// # Errors
/// Everything that [`ConvertError`] lists; on any error no output file is left.
pub fn convert(
    source: &HfSource,
    output: &Path,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<ConvertReport, ConvertError> {
    let model = source.import()?;
    pipeline::write_model(model, &source.write_source(), output, options, progress)
}

/// Converts the GGUF file `path` to one CMF file at `output`.
///
/// # Errors
/// Everything that [`ConvertError`] lists; on any error no output file is left.
pub fn import_gguf(
    path: &Path,
    output: &Path,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<ConvertReport, ConvertError> {
    let model = gguf::load(path)?;
    let source = pipeline::WriteSource {
        label: path.display().to_string(),
        label_key: "source",
        tool: "cortiq import-gguf",
        files: vec![path.to_path_buf()],
    };
    pipeline::write_model(model, &source, output, options, progress)
}

#[cfg(test)]
mod tests {
    use cortiq_quant::Encoding;

    use super::*;

    #[test]
    fn a_damaged_gguf_file_is_an_error_and_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (input, output) = (dir.path().join("m.gguf"), dir.path().join("m.cmf"));
        std::fs::write(&input, b"GGML rather than GGUF").unwrap();
        let error = import_gguf(&input, &output, &ConvertOptions::new(Encoding::Q8Row), &NoProgress).unwrap_err();
        assert!(matches!(error, ConvertError::Gguf(gguf::GgufError::Magic { .. })), "{error}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
