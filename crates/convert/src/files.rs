//! Source files: regular files only, so that a pipe or a device is an error instead of a hang.

use std::fs::File;
use std::io::{Error, ErrorKind, Read, Result};
use std::path::Path;

use memmap2::Mmap;

/// Opens a regular file.
pub(crate) fn open(path: &Path) -> Result<File> {
    // Before opening: opening a pipe waits for its other end.
    let kind = std::fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(ErrorKind::IsADirectory.into());
    }
    if !kind.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    File::open(path)
}

/// Reads a regular file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file that may be absent.
pub(crate) fn read_optional(path: &Path) -> Result<Option<Vec<u8>>> {
    match read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// A file mapped for reading, with the handle that tells its present length.
#[derive(Debug)]
pub(crate) struct MappedFile {
    map: Mmap,
    file: File,
}

impl MappedFile {
    /// Maps a regular file.
    #[allow(unsafe_code)]
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let file = open(path)?;
        // SAFETY: the map is private to this value and only ever read. Another process that shortens the file could
        // still make a read fault; `check_length` narrows that window before each tensor is read, and changed
        // *content* is harmless, because every value taken from the bytes is checked where it is used.
        let map = unsafe { Mmap::map(&file) }?;
        Ok(Self { map, file })
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Whether the file still has the length that it had when it was mapped.
    pub(crate) fn has_its_length(&self) -> bool {
        self.file.metadata().is_ok_and(|now| now.len() == self.map.len() as u64)
    }
}
