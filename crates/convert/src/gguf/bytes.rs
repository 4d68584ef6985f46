//! The bytes of a GGUF file: a read-only map, or memory (tests, embedded use).

use std::path::Path;

use super::GgufError;
use crate::files::MappedFile;

/// Read-only bytes of one file.
#[derive(Debug)]
pub(crate) enum FileBytes {
    /// A mapped file.
    Mapped(MappedFile),
    /// Bytes in memory.
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps `path` for reading.
    ///
    /// # Errors
    /// [`GgufError::Io`] when the file cannot be opened or mapped.
    pub(crate) fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io { path: path.to_path_buf(), source };
        MappedFile::open(path).map(Self::Mapped).map_err(io)
    }

    /// All bytes.
    pub(crate) fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped(file) => file.bytes(),
            Self::Owned(bytes) => bytes,
        }
    }

    /// Checks that a mapped file still has the length it had when it was mapped.
    ///
    /// # Errors
    /// [`GgufError::FileChanged`].
    pub(crate) fn check_length(&self) -> Result<(), GgufError> {
        match self {
            Self::Mapped(file) if !file.has_its_length() => Err(GgufError::FileChanged),
            _ => Ok(()),
        }
    }
}
