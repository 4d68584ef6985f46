//! The error type of this crate. Every message names the file, key, tensor or dtype it is about.

use std::path::{Path, PathBuf};

use cortiq_cmf::CmfError;
use cortiq_quant::QuantError;

use crate::gguf::GgufError;

/// Why a model could not be imported or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// A source file became shorter or longer while it was read.
    #[error("the file with tensor `{name}` changed while it was read")]
    SourceChanged {
        /// Tensor that was about to be read.
        name: String,
    },
    /// A file could not be opened, read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// A JSON file does not parse or has the wrong overall form.
    #[error("{file}: {reason}")]
    Json {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A file of the checkpoint that must exist does not.
    #[error("{file} is missing; {hint}")]
    MissingFile {
        /// The file's name.
        file: String,
        /// What the file is for, or where it was looked for.
        hint: String,
    },
    /// The model family (model_type, architecture or GGUF architecture) is not in the registry.
    #[error("family `{family}` is not supported yet")]
    UnsupportedFamily {
        /// The family's name as the checkpoint spells it.
        family: String,
    },
    /// A configuration key has a value that this family's import cannot express.
    #[error("config: `{key}` = `{value}` is not supported{}", detail_of(detail))]
    UnsupportedConfig {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Further explanation, or empty.
        detail: String,
    },
    /// A configuration key is missing, of the wrong type or out of range.
    #[error("config: `{key}` {reason}")]
    InvalidConfig {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A tensor that the family needs is not in the checkpoint.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// The tensor's name in the checkpoint.
        name: String,
    },
    /// A tensor of the checkpoint has no meaning in its family.
    #[error("tensor `{name}` is not known in family `{family}`")]
    UnknownTensor {
        /// The tensor's name in the checkpoint.
        name: String,
        /// The family.
        family: String,
    },
    /// The same tensor is stored twice.
    #[error("tensor `{name}` occurs twice in the checkpoint")]
    DuplicateTensor {
        /// The tensor's name.
        name: String,
    },
    /// A tensor's shape does not agree with the configuration.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?}")]
    Shape {
        /// The tensor's name.
        name: String,
        /// The shape that follows from the configuration.
        expected: Vec<u64>,
        /// The shape in the checkpoint.
        found: Vec<u64>,
    },
    /// A tensor's element type cannot be read.
    #[error("tensor `{name}` has dtype {dtype}, which is not supported (F32, F16 and BF16 are)")]
    UnsupportedDtype {
        /// The tensor's name.
        name: String,
        /// The element type as the file spells it.
        dtype: String,
    },
    /// A tensor gave another number of values than its shape says.
    #[error("tensor `{name}` gave {found} values, its shape says {expected}")]
    ValueCount {
        /// The tensor's name.
        name: String,
        /// Number of values its shape says.
        expected: u64,
        /// Number of values found.
        found: u64,
    },
    /// A tensor has finite values that f16 cannot hold.
    #[error("tensor `{name}` has values beyond the range of f16; store it as bf16 or f32")]
    F16Overflow {
        /// The tensor's name.
        name: String,
    },
    /// The thread that loads tensors panicked: a bug.
    #[error("internal error: loading a tensor panicked")]
    LoaderPanicked,
    /// A safetensors file is damaged.
    #[error("{file}: {reason}")]
    Safetensors {
        /// The file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A shard index names a file outside the checkpoint's own directory.
    #[error("{index}: shard name `{name}` is refused; it must be a plain file name beside the index")]
    ShardName {
        /// The index file.
        index: String,
        /// The name found in it.
        name: String,
    },
    /// The tokenizer does not load.
    #[error("{file} does not load as a tokenizer: {reason}")]
    Tokenizer {
        /// The file.
        file: String,
        /// What the tokenizer library said.
        reason: String,
    },
    /// An override whose pattern no tensor matches.
    #[error("no tensor matches the pattern `{pattern}`")]
    OverrideUnused {
        /// The pattern.
        pattern: String,
    },
    /// A pattern of a dtype override is not a valid glob.
    #[error("override pattern `{pattern}`: {reason}")]
    OverridePattern {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The output file exists and overwriting was not asked for.
    #[error("{} exists already; ask for overwriting to replace it", path.display())]
    OutputExists {
        /// The output file.
        path: PathBuf,
    },
    /// The output would replace a file of the source.
    #[error("output {} is a file of the source", path.display())]
    OutputIsSource {
        /// The output file.
        path: PathBuf,
    },
    /// A source is neither an existing path nor a well-formed repository id.
    #[error("`{source_text}` is neither an existing path nor a repository id like owner/name[@revision]")]
    BadSource {
        /// The text given.
        source_text: String,
    },
    /// This build has no access to the model hub.
    #[error("`{repo}` is not a local path, and this build has no model hub support (feature `hub`)")]
    HubDisabled {
        /// The repository id.
        repo: String,
    },
    /// A file is not in the cache and downloads are switched off.
    #[error("{file} of `{repo}` is not in the cache ({}) and offline mode is on", cache.display())]
    Offline {
        /// The repository id.
        repo: String,
        /// The file.
        file: String,
        /// The cache directory that was searched.
        cache: PathBuf,
    },
    /// The model hub answered with an error.
    #[error("{file} of `{repo}`: {reason}")]
    Hub {
        /// The repository id.
        repo: String,
        /// The file asked for.
        file: String,
        /// What went wrong.
        reason: String,
    },
    /// A tensor could not be encoded.
    #[error("tensor `{name}`: {source}")]
    Encode {
        /// The tensor's name.
        name: String,
        /// What the codec said.
        #[source]
        source: QuantError,
    },
    /// A GGUF file is damaged or not supported.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The container could not be written.
    #[error(transparent)]
    Cmf(#[from] CmfError),
}

fn detail_of(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(" ({detail})") }
}

impl ConvertError {
    /// An [`ConvertError::Io`] about `path`.
    pub fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    /// An [`ConvertError::InvalidConfig`] about `key`.
    pub fn invalid(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::InvalidConfig { key: key.into(), reason: reason.into() }
    }

    /// An [`ConvertError::UnsupportedConfig`] about `key`.
    pub fn unsupported(key: impl Into<String>, value: impl ToString, detail: impl Into<String>) -> Self {
        Self::UnsupportedConfig { key: key.into(), value: value.to_string(), detail: detail.into() }
    }
}
