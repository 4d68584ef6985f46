//! The tensor directory, docs/cmf-format.md §4.

use crate::dtype::element_count;
use crate::envelope::{u32_at, u64_at};
use crate::{CmfError, Dtype};
use std::collections::BTreeSet;

/// Fixed part in front of the records.
const HEAD_LEN: u64 = 16;
/// Length of one record.
const RECORD_LEN: u64 = 56;
/// Most dimensions of a tensor.
pub(crate) const MAX_DIMS: usize = 6;
/// A payload starts at a multiple of this inside the blob.
pub(crate) const TENSOR_ALIGN: u64 = 64;

/// One tensor of the directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the file (in all shards of a sharded model).
    pub name: String,
    /// Encoding of the payload.
    pub dtype: Dtype,
    /// Dimensions, matrices as `[out, in]`; empty for a single number.
    pub shape: Vec<u32>,
    /// Offset of the payload inside the data section of its shard, a multiple of 64.
    pub offset: u64,
    /// Length of the payload in bytes.
    pub nbytes: u64,
    /// hash64 of the payload.
    pub hash: u64,
    /// Which shard holds the payload, counted from 0 (0 for a single file).
    pub part: usize,
}

impl TensorInfo {
    /// Number of elements. Open has checked that it fits.
    #[must_use]
    pub fn element_count(&self) -> u64 {
        element_count(&self.shape).unwrap_or(u64::MAX)
    }
}

/// Reads the directory of one file. The payload ranges are checked against `data_len`,
/// the payloads themselves are not looked at (rules 10 to 15 and 17 of §13).
pub(crate) fn parse(bytes: &[u8], data_len: u64, part: usize) -> Result<Vec<TensorInfo>, CmfError> {
    let len = bytes.len() as u64;
    let (Some(count), Some(pool_off)) = (u64_at(bytes, 0), u64_at(bytes, 8)) else {
        return Err(CmfError::DirectoryTooShort { len });
    };
    let records_end = count.checked_mul(RECORD_LEN).and_then(|n| n.checked_add(HEAD_LEN)).filter(|end| *end <= len);
    let Some(records_end) = records_end else {
        return Err(CmfError::DirectoryRecords { count, len });
    };
    let pool = usize::try_from(pool_off).ok().filter(|_| pool_off >= records_end).and_then(|at| bytes.get(at..));
    let Some(pool) = pool else {
        return Err(CmfError::NamePool { pool_off, len });
    };
    let records = bytes.get(HEAD_LEN as usize..records_end as usize).unwrap_or_default();
    let mut tensors = Vec::with_capacity(records.len() / RECORD_LEN as usize);
    let mut names_len = 0u64;
    for (index, record) in records.chunks_exact(RECORD_LEN as usize).enumerate() {
        let tensor = parse_record(index, record, pool, &mut names_len, part)?;
        check_range(&tensor, data_len)?;
        tensors.push(tensor);
    }
    check_names(&tensors)?;
    check_overlaps(&tensors)?;
    Ok(tensors)
}

fn parse_record(
    index: usize,
    record: &[u8],
    pool: &[u8],
    names_len: &mut u64,
    part: usize,
) -> Result<TensorInfo, CmfError> {
    let outside = || CmfError::NameOutOfBounds { index };
    let word = |at: usize| u32_at(record, at).unwrap_or(0);
    let long = |at: usize| u64_at(record, at).unwrap_or(0);
    let [name_lo, name_hi, id, ndim] = word(4).to_le_bytes();
    let ndim = usize::from(ndim);
    if ndim > MAX_DIMS {
        return Err(CmfError::TooManyDims { index, ndim });
    }
    let name_off = usize::try_from(word(0)).map_err(|_| outside())?;
    let name_len = usize::from(u16::from_le_bytes([name_lo, name_hi]));
    let name_end = name_off.checked_add(name_len).ok_or_else(outside)?;
    let name = pool.get(name_off..name_end).ok_or_else(outside)?;
    if name.is_empty() {
        return Err(CmfError::EmptyName { index });
    }
    // Without this a small pool could be unfolded into names of many times its size.
    *names_len += name_len as u64;
    if *names_len > pool.len() as u64 {
        return Err(CmfError::SharedNames { names: *names_len, pool: pool.len() as u64 });
    }
    let name = std::str::from_utf8(name).map_err(|_| CmfError::NameNotUtf8 { index })?;
    Ok(TensorInfo {
        name: name.to_owned(),
        dtype: Dtype::from_id(id)?,
        shape: (0..ndim).map(|i| word(8 + 4 * i)).collect(),
        offset: long(32),
        nbytes: long(40),
        hash: long(48),
        part,
    })
}

fn check_range(tensor: &TensorInfo, data_len: u64) -> Result<(), CmfError> {
    let name = || tensor.name.clone();
    if !tensor.offset.is_multiple_of(TENSOR_ALIGN) {
        return Err(CmfError::TensorMisaligned { name: name(), offset: tensor.offset });
    }
    let end = tensor.offset.checked_add(tensor.nbytes);
    if end.is_none_or(|end| end > data_len) {
        return Err(CmfError::TensorOutOfBounds {
            name: name(),
            offset: tensor.offset,
            nbytes: tensor.nbytes,
            data_len,
        });
    }
    check_len(&tensor.name, tensor.dtype, &tensor.shape, tensor.nbytes)
}

/// The rules on dtype, shape and payload length.
pub(crate) fn check_len(name: &str, dtype: Dtype, shape: &[u32], nbytes: u64) -> Result<(), CmfError> {
    match dtype.fixed_len_of(name, shape)? {
        Some(expected) if expected != nbytes => {
            Err(CmfError::PayloadLength { name: name.into(), dtype: dtype.name(), expected, found: nbytes })
        }
        _ => Ok(()),
    }
}

/// Refuses the second of two equal names.
pub(crate) fn check_names(tensors: &[TensorInfo]) -> Result<(), CmfError> {
    let mut seen = BTreeSet::new();
    for tensor in tensors {
        if !seen.insert(tensor.name.as_str()) {
            return Err(CmfError::DuplicateName(tensor.name.clone()));
        }
    }
    Ok(())
}

fn check_overlaps(tensors: &[TensorInfo]) -> Result<(), CmfError> {
    let mut used: Vec<&TensorInfo> = tensors.iter().filter(|t| t.nbytes > 0).collect();
    used.sort_by_key(|t| t.offset);
    for pair in used.windows(2) {
        if let [first, second] = pair
            && first.offset.saturating_add(first.nbytes) > second.offset
        {
            return Err(CmfError::TensorsOverlap { first: first.name.clone(), second: second.name.clone() });
        }
    }
    Ok(())
}

/// Length of the directory for tensors with these names.
pub(crate) fn encoded_len<'a>(names: impl IntoIterator<Item = &'a str>) -> u64 {
    names.into_iter().fold(HEAD_LEN, |sum, name| sum + RECORD_LEN + name.len() as u64)
}

/// The directory as bytes; names in order, without sharing. The caller has checked the
/// number of dimensions and the lengths of the names.
pub(crate) fn encode(tensors: &[TensorInfo]) -> Vec<u8> {
    let names = tensors.iter().map(|t| t.name.as_str());
    let mut out = Vec::with_capacity(encoded_len(names) as usize);
    let count = tensors.len() as u64;
    out.extend_from_slice(&count.to_le_bytes());
    out.extend_from_slice(&(HEAD_LEN + RECORD_LEN * count).to_le_bytes());
    let mut name_off = 0u32;
    for tensor in tensors {
        let name_len = tensor.name.len() as u16;
        out.extend_from_slice(&name_off.to_le_bytes());
        out.extend_from_slice(&name_len.to_le_bytes());
        out.push(tensor.dtype.id());
        out.push(tensor.shape.len() as u8);
        for i in 0..MAX_DIMS {
            let dim = tensor.shape.get(i).copied().unwrap_or(0);
            out.extend_from_slice(&dim.to_le_bytes());
        }
        for word in [tensor.offset, tensor.nbytes, tensor.hash] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        name_off = name_off.wrapping_add(u32::from(name_len));
    }
    for tensor in tensors {
        out.extend_from_slice(tensor.name.as_bytes());
    }
    out
}
