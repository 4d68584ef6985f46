//! The bytes of a GGUF file: a read-only map, or memory (tests, embedded use).
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use super::GgufError;

/// Read-only bytes of one file.
#[derive(Debug)]
pub enum FileBytes {
    /// A mapped file, with the handle that tells its present length.
    Mapped {
        /// The map.
        map: Mmap,
        /// The mapped file.
        file: File,
    },
    /// Bytes in memory.
    Owned(Vec<u8>),
}

impl FileBytes {
    /// Maps `path` for reading.
    ///
    /// # Errors
    /// [`GgufError::Io`] when the file cannot be opened or mapped.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let io = |source| GgufError::Io { path: path.to_path_buf(), source };
        let file = File::open(path).map_err(io)?;
        // SAFETY: the map is private to this value and only ever read. Another process that
        // shortens the file could still make a read fault; `check_length` narrows that window
        // before each tensor is read, and a changed *content* is harmless because every value
        // taken from the bytes is checked where it is used.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        Ok(Self::Mapped { map, file })
    }

    /// All bytes.
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Self::Mapped { map, .. } => map,
            Self::Owned(bytes) => bytes,
        }
    }

    /// Checks that a mapped file still has the length it had when it was mapped.
    ///
    /// # Errors
    /// [`GgufError::FileChanged`].
    pub fn check_length(&self) -> Result<(), GgufError> {
        match self {
            Self::Mapped { map, file } => {
                let now = file.metadata().map(|m| m.len()).map_err(|_| GgufError::FileChanged)?;
                if now == map.len() as u64 { Ok(()) } else { Err(GgufError::FileChanged) }
            }
            Self::Owned(_) => Ok(()),
        }
    }
}
