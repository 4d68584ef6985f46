//! Reading the user's own input: small files and the standard input.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};

/// Reads a regular file. Its kind is looked at before it is opened: opening a pipe could wait for ever.
pub fn read_file(path: &Path) -> anyhow::Result<Vec<u8>> {
    let shown = path.display();
    let metadata = std::fs::metadata(path).with_context(|| shown.to_string())?;
    if metadata.is_dir() {
        bail!("{shown} is a directory, not a file");
    }
    if !metadata.is_file() {
        bail!("{shown} is not a regular file");
    }
    std::fs::read(path).with_context(|| shown.to_string())
}

/// Text of a regular file.
pub fn read_text(path: &Path) -> anyhow::Result<String> {
    String::from_utf8(read_file(path)?).map_err(|e| {
        anyhow::anyhow!("{} is not valid UTF-8 (at byte {})", path.display(), e.utf8_error().valid_up_to())
    })
}

/// The whole standard input, taken as it is.
pub fn read_stdin() -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).context("cannot read the standard input")?;
    String::from_utf8(bytes).map_err(|e| {
        anyhow::anyhow!("the standard input is not valid UTF-8 (at byte {})", e.utf8_error().valid_up_to())
    })
}
