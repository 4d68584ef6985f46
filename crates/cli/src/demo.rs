//! The model that is part of the program (demo/README.md).

use std::path::Path;

use cortiq_cmf::{CmfError, CmfFile};

/// The name under which it is opened, unless a file of that name exists.
pub const NAME: &str = "demo";

static FILE: &[u8] = include_bytes!("../../../demo/story-hybrid.cmf");

/// Whether `path` means the built-in model.
pub fn is_meant(path: &Path) -> bool {
    path == Path::new(NAME) && !path.is_file()
}

/// Opens the built-in model.
pub fn open() -> Result<CmfFile, CmfError> {
    CmfFile::from_bytes(FILE.to_vec())
}
