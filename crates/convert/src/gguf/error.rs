//! Errors of the GGUF import. Every message names the key, the tensor or the part of the file.

use std::path::PathBuf;

/// Why a GGUF file could not be imported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GgufError {
    /// The file could not be opened or mapped.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        #[source]
        source: std::io::Error,
    },
    /// The file does not begin with `GGUF`.
    #[error("not a GGUF file: it begins with {found:02x?}")]
    Magic {
        /// The first four bytes.
        found: [u8; 4],
    },
    /// The file is written in big-endian byte order.
    #[error("big-endian GGUF files are not supported")]
    BigEndian,
    /// The container version is neither 2 nor 3.
    #[error("GGUF version {version} is not supported (2 and 3 are)")]
    Version {
        /// The version in the file.
        version: u32,
    },
    /// The file is one part of a split model.
    #[error("split files are not supported: `split.count` is {count}; merge the parts into one file first")]
    Split {
        /// Number of parts.
        count: u64,
    },
    /// The file ends inside the named part.
    #[error("the file ends inside {what} (needs {needed} bytes, {left} left)")]
    Truncated {
        /// What was being read.
        what: String,
        /// Bytes needed.
        needed: u64,
        /// Bytes left.
        left: u64,
    },
    /// A count or length is above the reader's limit.
    #[error("{what} is {value}, above the limit of {limit}")]
    Limit {
        /// What is counted.
        what: String,
        /// The value in the file.
        value: u64,
        /// The limit.
        limit: u64,
    },
    /// A part of the file is malformed.
    #[error("{what}: {reason}")]
    Malformed {
        /// The part.
        what: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The same metadata key or tensor name occurs twice.
    #[error("{what} `{name}` occurs twice")]
    Duplicate {
        /// "key" or "tensor".
        what: &'static str,
        /// The name.
        name: String,
    },
    /// A metadata key that the import needs is absent.
    #[error("key `{key}` is missing")]
    MissingKey {
        /// The key.
        key: String,
    },
    /// A metadata key has a value of the wrong type or out of range.
    #[error("key `{key}`: {reason}")]
    BadKey {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A metadata key has a value that this import cannot express.
    #[error("key `{key}` = `{value}` is not supported{detail}")]
    UnsupportedKey {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Further explanation in brackets, or empty.
        detail: String,
    },
    /// `general.architecture` names an architecture that is not supported.
    #[error("architecture `{arch}` is not supported ({supported} are)")]
    Architecture {
        /// The architecture.
        arch: String,
        /// Those that are, for the message.
        supported: String,
    },
    /// The architecture needs a tensor that is not in the file.
    #[error("tensor `{name}` is missing")]
    MissingTensor {
        /// The tensor's GGUF name.
        name: String,
    },
    /// A tensor has no meaning in its architecture.
    #[error("tensor `{name}` is not known in architecture `{arch}`")]
    UnknownTensor {
        /// The tensor's GGUF name.
        name: String,
        /// The architecture.
        arch: String,
    },
    /// A tensor's shape does not follow from the metadata.
    #[error("tensor `{name}` has shape {found:?}, expected {expected:?} (outermost dimension first)")]
    Shape {
        /// The tensor's GGUF name.
        name: String,
        /// The shape that follows from the metadata.
        expected: Vec<u64>,
        /// The shape in the file, outermost dimension first.
        found: Vec<u64>,
    },
    /// A tensor is stored in a type that cannot be read.
    #[error("tensor `{name}` has type {ggml_type}, which is not supported")]
    TensorType {
        /// The tensor's GGUF name.
        name: String,
        /// Name of the type, or its number when it has no known name.
        ggml_type: String,
    },
    /// `rope_freqs.weight` does not follow from any parameters of the llama3 scaling rule.
    #[error("tensor `rope_freqs.weight`: {reason}")]
    RopeFreqs {
        /// What is wrong with it.
        reason: String,
    },
    /// The rebuilt tokenizer does not load.
    #[error("the tokenizer rebuilt from the GGUF metadata does not load: {reason}")]
    Tokenizer {
        /// What the tokenizer library said.
        reason: String,
    },
    /// The file's length changed while it was in use.
    #[error("the file changed its length while it was read")]
    FileChanged,
}

impl GgufError {
    pub(super) fn malformed(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Malformed { what: what.into(), reason: reason.into() }
    }

    pub(super) fn bad_key(key: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::BadKey { key: key.into(), reason: reason.into() }
    }

    pub(super) fn missing_key(key: impl Into<String>) -> Self {
        Self::MissingKey { key: key.into() }
    }

    /// `detail` may be empty.
    pub(super) fn unsupported_key(key: impl Into<String>, value: impl ToString, detail: &str) -> Self {
        let detail = if detail.is_empty() { String::new() } else { format!(" ({detail})") };
        Self::UnsupportedKey { key: key.into(), value: value.to_string(), detail }
    }
}
