//! Models in several files, docs/cmf-format.md §12.

use crate::part::Part;
use crate::source::Source;
use crate::{CmfError, ShardInfo, TensorInfo};
use std::path::Path;

/// Name of shard `no` of `count`: `{stem}-{no:05}-of-{count:05}.cmf`.
#[must_use]
pub fn shard_file_name(stem: &str, no: usize, count: usize) -> String {
    format!("{stem}{}", tag(no, count))
}

fn tag(no: usize, count: usize) -> String {
    format!("-{no:05}-of-{count:05}.cmf")
}

/// First shard, other shards, joined directory.
type Opened = (Part, Vec<Part>, Vec<TensorInfo>);

/// Opens the shard at `path` and all its siblings; a file without coordinates alone.
pub(crate) fn open(path: &Path, read: &dyn Fn(&Path) -> Result<Source, CmfError>) -> Result<Opened, CmfError> {
    let (part, tensors) = Part::open(read(path)?, 0)?;
    let Some(ShardInfo { no, count }) = part.header.shard else {
        return Ok((part, Vec::new(), tensors));
    };
    let stem = stem(path, no, count)?;
    let sibling = |no: usize| path.with_file_name(shard_file_name(&stem, no, count));
    let (first, mut tensors) = if no == 1 {
        (part, tensors)
    } else {
        // Dropped before its own turn comes: one mapping per file.
        drop((part, tensors));
        open_sibling(&sibling(1), 1, count, read)?
    };
    let mut others = Vec::new();
    for no in 2..=count {
        let (part, mut more) = open_sibling(&sibling(no), no, count, read)?;
        others.push(part);
        tensors.append(&mut more);
    }
    Ok((first, others, tensors))
}

/// The file name without its shard tag.
fn stem(path: &Path, no: usize, count: usize) -> Result<String, CmfError> {
    let tag = tag(no, count);
    path.file_name()
        .and_then(|name| name.to_str())
        .and_then(|name| name.strip_suffix(&tag))
        .map(str::to_owned)
        .ok_or_else(|| CmfError::ShardName { path: path.to_path_buf(), tag })
}

fn open_sibling(
    path: &Path,
    no: usize,
    count: usize,
    read: &dyn Fn(&Path) -> Result<Source, CmfError>,
) -> Result<(Part, Vec<TensorInfo>), CmfError> {
    let (part, tensors) = Part::open(read(path)?, no.saturating_sub(1))?;
    if part.header.shard == Some(ShardInfo { no, count }) {
        Ok((part, tensors))
    } else {
        Err(CmfError::ShardMismatch { path: path.to_path_buf(), no, count })
    }
}
