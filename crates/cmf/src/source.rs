//! Where the bytes of a file are: mapped, or in memory. The only place with `unsafe`.

use crate::CmfError;
use memmap2::Mmap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Owned bytes start at a multiple of this, so that payloads are aligned as in a mapped file.
const OWNED_ALIGN: usize = 64;

pub(crate) enum Source {
    Mapped {
        map: Mmap,
        /// Kept to notice a changed length.
        file: File,
        path: PathBuf,
    },
    Owned {
        buffer: Vec<u8>,
        start: usize,
    },
}

impl Source {
    pub(crate) fn map(path: &Path) -> Result<Self, CmfError> {
        let (file, len) = open_regular(path)?;
        if len < crate::ENVELOPE_LEN {
            // An empty file cannot be mapped at all.
            return Err(CmfError::FileTooShort { len });
        }
        let map = map_file(&file).map_err(|e| CmfError::io(path, e))?;
        Ok(Self::Mapped { map, file, path: path.to_path_buf() })
    }

    pub(crate) fn read(path: &Path) -> Result<Self, CmfError> {
        let (mut file, len) = open_regular(path)?;
        let out_of_memory = || CmfError::io(path, std::io::ErrorKind::OutOfMemory.into());
        let len = usize::try_from(len).map_err(|_| out_of_memory())?;
        let (mut buffer, start) = aligned(len).ok_or_else(out_of_memory)?;
        file.read_exact(buffer.get_mut(start..).unwrap_or_default()).map_err(|e| CmfError::io(path, e))?;
        Ok(Self::Owned { buffer, start })
    }

    /// Takes the bytes as they are when they happen to be aligned, else copies them.
    pub(crate) fn from_bytes(bytes: Vec<u8>) -> Result<Self, CmfError> {
        if bytes.as_ptr().align_offset(OWNED_ALIGN) == 0 {
            return Ok(Self::Owned { buffer: bytes, start: 0 });
        }
        let memory = || CmfError::io(Path::new(""), std::io::ErrorKind::OutOfMemory.into());
        let (mut buffer, start) = aligned(bytes.len()).ok_or_else(memory)?;
        if let Some(target) = buffer.get_mut(start..) {
            target.copy_from_slice(&bytes);
        }
        Ok(Self::Owned { buffer, start })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::Mapped { map, .. } => map,
            Self::Owned { buffer, start } => buffer.get(*start..).unwrap_or_default(),
        }
    }

    /// Compares the length of a mapped file with the length of its mapping.
    pub(crate) fn check_length(&self) -> Result<(), CmfError> {
        let Self::Mapped { map, file, path } = self else {
            return Ok(());
        };
        let found = file.metadata().map_err(|e| CmfError::io(path, e))?.len();
        let expected = map.len() as u64;
        if found == expected {
            return Ok(());
        }
        Err(CmfError::LengthChanged { path: path.clone(), expected, found })
    }

    /// Asks the system to read a mapped file ahead; a hint, so failures do not matter.
    pub(crate) fn prefetch(&self) {
        #[cfg(unix)]
        if let Self::Mapped { map, .. } = self {
            let _ = map.advise(memmap2::Advice::WillNeed);
        }
    }
}

/// Opens a regular file. The kind is looked at before opening, because opening a pipe
/// waits for its other end, and again afterwards in case the path changed in between.
fn open_regular(path: &Path) -> Result<(File, u64), CmfError> {
    let io = |e| CmfError::io(path, e);
    if !std::fs::metadata(path).map_err(io)?.is_file() {
        return Err(CmfError::NotARegularFile(path.to_path_buf()));
    }
    let file = File::open(path).map_err(io)?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(CmfError::NotARegularFile(path.to_path_buf()));
    }
    Ok((file, metadata.len()))
}

#[allow(unsafe_code)]
fn map_file(file: &File) -> std::io::Result<Mmap> {
    // SAFETY: the mapping is read-only and lives as long as the bytes are borrowed. Another
    // process can still change or shorten the file: changed bytes are read as they are (all
    // checked structure was copied out at open, except the inner tables of vbit, q1s and q1t),
    // shortened ones end the process with SIGBUS. Both are documented on `CmfFile::open`, and
    // `CmfFile::open_owned` is the mode without this risk.
    unsafe { Mmap::map(file) }
}

/// A zeroed buffer whose last `len` bytes start at a multiple of [`OWNED_ALIGN`].
fn aligned(len: usize) -> Option<(Vec<u8>, usize)> {
    let mut buffer = Vec::<u8>::new();
    let capacity = len.checked_add(OWNED_ALIGN)?;
    buffer.try_reserve_exact(capacity).ok()?;
    let start = buffer.as_ptr().align_offset(OWNED_ALIGN);
    // `align_offset` may answer "cannot be done" with usize::MAX.
    let start = if start < OWNED_ALIGN { start } else { 0 };
    buffer.resize(start + len, 0);
    Some((buffer, start))
}
