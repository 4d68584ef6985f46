//! Parser of the GGUF container, versions 2 and 3, little-endian.
//!
//! Layout: magic `GGUF`, u32 version, u64 tensor count, u64 key count; the key-value pairs; one
//! record per tensor (name, u32 number of dimensions, u64 dimensions innermost first, u32 type,
//! u64 offset); padding to `general.alignment`; the tensor data, to which offsets are relative.
//!
//! Every length is checked against the bytes that are left and against the limits below before
//! anything is allocated, and all arithmetic is checked, so that no input can make the reader
//! panic or ask for memory out of proportion to the file.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::GgufError;
use super::bytes::FileBytes;
use super::ggml_type::{GgmlType, type_name};
use super::metadata::{ArrayRef, Metadata, Value, ValueType};

/// Most key-value pairs in a file.
pub const MAX_KEYS: u64 = 65_536;
/// Most tensors in a file.
pub const MAX_TENSORS: u64 = 262_144;
/// Most elements of one array.
pub const MAX_ARRAY_LEN: u64 = 1 << 26;
/// Longest string in bytes (embedded tokenizers are strings of some megabytes).
pub const MAX_STRING_LEN: u64 = 1 << 27;
/// Longest key in bytes, as the format defines it.
pub const MAX_KEY_LEN: u64 = 65_535;
/// Longest tensor name in bytes (the format says 64; some writers allow more).
pub const MAX_TENSOR_NAME_LEN: u64 = 256;
/// Most dimensions of a tensor.
pub const MAX_DIMS: u32 = 4;
/// Deepest nesting of arrays.
pub const MAX_ARRAY_DEPTH: u32 = 4;
/// Largest alignment of the tensor data.
pub const MAX_ALIGNMENT: u64 = 1 << 20;
/// Alignment when `general.alignment` is absent.
pub const DEFAULT_ALIGNMENT: u64 = 32;

const MAGIC: [u8; 4] = *b"GGUF";

/// One tensor of a file, checked: its data lies inside the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorRecord {
    /// Name in the file.
    pub name: String,
    /// Shape, outermost dimension first (`[out, in]` for a matrix): the file's order reversed.
    pub shape: Vec<u64>,
    /// Number of the type in the file.
    pub type_id: u32,
    /// Offset relative to the start of the tensor data.
    offset: u64,
    /// Where the data lies; `None` when the type cannot be read, so that its size is unknown.
    data: Option<Range<usize>>,
}

impl TensorRecord {
    /// The tensor's type.
    ///
    /// # Errors
    /// [`GgufError::TensorType`] when it cannot be read.
    pub fn ggml_type(&self) -> Result<GgmlType, GgufError> {
        GgmlType::from_id(self.type_id)
            .ok_or_else(|| GgufError::TensorType { name: self.name.clone(), ggml_type: type_name(self.type_id) })
    }
}

/// A parsed GGUF file.
#[derive(Debug)]
pub struct GgufFile {
    bytes: Arc<FileBytes>,
    version: u32,
    metadata: Metadata,
    tensors: Vec<TensorRecord>,
    by_name: HashMap<String, usize>,
}

impl GgufFile {
    /// Maps and parses `path`.
    ///
    /// # Errors
    /// [`GgufError`] as for [`GgufFile::from_bytes`], or [`GgufError::Io`].
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        Self::parse(FileBytes::open(path)?)
    }

    /// Parses a file held in memory.
    ///
    /// # Errors
    /// [`GgufError`] when the bytes are not a sound GGUF file of version 2 or 3.
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, GgufError> {
        Self::parse(FileBytes::Owned(bytes))
    }

    /// Version of the container, 2 or 3.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// The key-value pairs.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The tensors, in file order.
    pub fn tensors(&self) -> &[TensorRecord] {
        &self.tensors
    }

    /// Index of the tensor with this name.
    pub fn find(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
    }

    /// The stored bytes of a tensor.
    ///
    /// # Errors
    /// [`GgufError::TensorType`] when the type cannot be read, [`GgufError::FileChanged`] when
    /// the file is no longer as long as it was.
    pub fn data(&self, tensor: &TensorRecord) -> Result<&[u8], GgufError> {
        tensor.ggml_type()?;
        self.bytes.check_length()?;
        let range = tensor.data.clone().unwrap_or(0..0);
        self.bytes.as_slice().get(range).ok_or(GgufError::FileChanged)
    }

    fn parse(bytes: FileBytes) -> Result<Self, GgufError> {
        let bytes = Arc::new(bytes);
        let mut cursor = Cursor { bytes: bytes.as_slice(), pos: 0 };
        let (version, tensor_count, key_count) = read_preamble(&mut cursor)?;
        let values = read_keys(&mut cursor, key_count)?;
        let metadata = Metadata { bytes: Arc::clone(&bytes), values };
        refuse_split(&metadata)?;
        let mut tensors = read_tensor_records(&mut cursor, tensor_count)?;
        let alignment = alignment_of(&metadata)?;
        let start = (cursor.pos as u64)
            .checked_next_multiple_of(alignment)
            .ok_or_else(|| GgufError::malformed("tensor data", "its start overflows"))?;
        let file_len = bytes.as_slice().len() as u64;
        for tensor in &mut tensors {
            tensor.data = locate(tensor, start, alignment, file_len)?;
        }
        let by_name = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { bytes, version, metadata, tensors, by_name })
    }
}

fn read_preamble(cursor: &mut Cursor<'_>) -> Result<(u32, u64, u64), GgufError> {
    let magic = cursor.array::<4>("the magic")?;
    if magic != MAGIC {
        return Err(GgufError::Magic { found: magic });
    }
    let version = cursor.u32("the version")?;
    match version {
        2 | 3 => {}
        v if matches!(v.swap_bytes(), 1..=3) => return Err(GgufError::BigEndian),
        version => return Err(GgufError::Version { version }),
    }
    let tensor_count = cursor.u64("the tensor count")?;
    let key_count = cursor.u64("the key count")?;
    limit("the tensor count", tensor_count, MAX_TENSORS)?;
    limit("the key count", key_count, MAX_KEYS)?;
    Ok((version, tensor_count, key_count))
}

fn read_keys(cursor: &mut Cursor<'_>, count: u64) -> Result<HashMap<String, Value>, GgufError> {
    let mut values = HashMap::new();
    for index in 0..count {
        let what = format!("key {index}");
        let key = cursor.text(&what, MAX_KEY_LEN)?.to_owned();
        let what = format!("the value of key `{key}`");
        let kind = cursor.value_type(&what)?;
        let value = read_value(cursor, kind, &what)?;
        if values.contains_key(&key) {
            return Err(GgufError::Duplicate { what: "key", name: key });
        }
        values.insert(key, value);
    }
    Ok(values)
}

fn read_value(cursor: &mut Cursor<'_>, kind: ValueType, what: &str) -> Result<Value, GgufError> {
    Ok(match kind {
        ValueType::U8 => Value::Unsigned(cursor.array::<1>(what).map(|[b]| b.into())?),
        ValueType::I8 => Value::Signed(i8::from_le_bytes(cursor.array(what)?).into()),
        ValueType::U16 => Value::Unsigned(u16::from_le_bytes(cursor.array(what)?).into()),
        ValueType::I16 => Value::Signed(i16::from_le_bytes(cursor.array(what)?).into()),
        ValueType::U32 => Value::Unsigned(cursor.u32(what)?.into()),
        ValueType::I32 => Value::Signed(i32::from_le_bytes(cursor.array(what)?).into()),
        ValueType::U64 => Value::Unsigned(cursor.u64(what)?),
        ValueType::I64 => Value::Signed(i64::from_le_bytes(cursor.array(what)?)),
        ValueType::F32 => Value::Float(f32::from_le_bytes(cursor.array(what)?).into()),
        ValueType::F64 => Value::Float(f64::from_le_bytes(cursor.array(what)?)),
        ValueType::Bool => match cursor.array::<1>(what)? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [b] => return Err(GgufError::malformed(what, format!("{b} is not a boolean"))),
        },
        ValueType::String => Value::String(cursor.string(what, MAX_STRING_LEN)?),
        ValueType::Array => Value::Array(read_array(cursor, what, 1)?),
    })
}

/// Walks over one array and notes where its elements lie.
fn read_array(cursor: &mut Cursor<'_>, what: &str, depth: u32) -> Result<ArrayRef, GgufError> {
    limit(format_args!("the array depth of {what}"), depth.into(), MAX_ARRAY_DEPTH.into())?;
    let element = cursor.value_type(what)?;
    let count = cursor.u64(what)?;
    limit(format_args!("the array length of {what}"), count, MAX_ARRAY_LEN)?;
    let start = cursor.pos;
    match element.fixed_size() {
        Some(size) => {
            let bytes = count.saturating_mul(size);
            cursor.skip(bytes, what)?;
        }
        None => {
            for _ in 0..count {
                if element == ValueType::String {
                    cursor.string(what, MAX_STRING_LEN)?;
                } else {
                    read_array(cursor, what, depth + 1)?;
                }
            }
        }
    }
    let count =
        usize::try_from(count).map_err(|_| GgufError::malformed(what, "the array is too long for this machine"))?;
    Ok(ArrayRef { element, count, range: start..cursor.pos })
}

fn refuse_split(metadata: &Metadata) -> Result<(), GgufError> {
    match metadata.unsigned("split.count")? {
        Some(count) if count > 1 => Err(GgufError::Split { count }),
        _ => Ok(()),
    }
}

fn alignment_of(metadata: &Metadata) -> Result<u64, GgufError> {
    const KEY: &str = "general.alignment";
    let alignment = metadata.unsigned(KEY)?.unwrap_or(DEFAULT_ALIGNMENT);
    if alignment.is_power_of_two() && alignment <= MAX_ALIGNMENT {
        Ok(alignment)
    } else {
        let reason = format!("{alignment} is not a power of two up to {MAX_ALIGNMENT}");
        Err(GgufError::bad_key(KEY, reason))
    }
}

fn read_tensor_records(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<TensorRecord>, GgufError> {
    let mut tensors = Vec::new();
    let mut names = HashSet::new();
    for index in 0..count {
        let tensor = read_tensor_record(cursor, index)?;
        if !names.insert(tensor.name.clone()) {
            return Err(GgufError::Duplicate { what: "tensor", name: tensor.name });
        }
        tensors.push(tensor);
    }
    Ok(tensors)
}

fn read_tensor_record(cursor: &mut Cursor<'_>, index: u64) -> Result<TensorRecord, GgufError> {
    let what = format!("the name of tensor {index}");
    let name = cursor.text(&what, MAX_TENSOR_NAME_LEN)?.to_owned();
    let what = format!("the record of tensor `{name}`");
    let dims = cursor.u32(&what)?;
    limit(format_args!("the number of dimensions of tensor `{name}`"), dims.into(), MAX_DIMS.into())?;
    let mut shape = Vec::new();
    for _ in 0..dims {
        let dim = cursor.u64(&what)?;
        if dim == 0 {
            return Err(GgufError::malformed(what, "a dimension is 0"));
        }
        shape.push(dim);
    }
    if shape.is_empty() {
        return Err(GgufError::malformed(what, "the tensor has no dimensions"));
    }
    shape.reverse();
    let type_id = cursor.u32(&what)?;
    let offset = cursor.u64(&what)?;
    Ok(TensorRecord { name, shape, type_id, offset, data: None })
}

/// Where a tensor's data lies in the file; `None` for a type of unknown size.
fn locate(tensor: &TensorRecord, start: u64, alignment: u64, file_len: u64) -> Result<Option<Range<usize>>, GgufError> {
    let what = || format!("tensor `{}`", tensor.name);
    if !tensor.offset.is_multiple_of(alignment) {
        let reason = format!("offset {} is not a multiple of {alignment}", tensor.offset);
        return Err(GgufError::malformed(what(), reason));
    }
    let values = tensor
        .shape
        .iter()
        .try_fold(1u64, |n, &d| n.checked_mul(d))
        .ok_or_else(|| GgufError::malformed(what(), "the number of values overflows"))?;
    let Some(ggml_type) = GgmlType::from_id(tensor.type_id) else { return Ok(None) };
    let (block_len, block_bytes) = (ggml_type.block_len() as u64, ggml_type.block_bytes() as u64);
    let row = tensor.shape.last().copied().unwrap_or(0);
    if !row.is_multiple_of(block_len) {
        let reason = format!("rows of {row} values do not fill blocks of {block_len} ({})", ggml_type.name());
        return Err(GgufError::malformed(what(), reason));
    }
    let size = (values / block_len)
        .checked_mul(block_bytes)
        .ok_or_else(|| GgufError::malformed(what(), "its size overflows"))?;
    let begin = start.checked_add(tensor.offset);
    let end = begin.and_then(|b| b.checked_add(size));
    match (begin, end) {
        (Some(begin), Some(end)) if end <= file_len => {
            // Both are at most the length of a slice, so they fit.
            Ok(Some(begin as usize..end as usize))
        }
        _ => Err(GgufError::Truncated {
            what: format!("the data of tensor `{}`", tensor.name),
            needed: size,
            left: file_len.saturating_sub(begin.unwrap_or(u64::MAX)),
        }),
    }
}

/// The name is only formatted when the limit is passed: there is a call for every string of a vocabulary.
fn limit(what: impl std::fmt::Display, value: u64, limit: u64) -> Result<(), GgufError> {
    if value <= limit { Ok(()) } else { Err(GgufError::Limit { what: what.to_string(), value, limit }) }
}

/// A reading position; every step is checked against the bytes that are left.
struct Cursor<'a> {
    bytes: &'a [u8],
    pos: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a [u8] {
        self.bytes.get(self.pos..).unwrap_or(&[])
    }

    fn truncated(&self, what: &str, needed: u64) -> GgufError {
        GgufError::Truncated { what: what.to_owned(), needed, left: self.rest().len() as u64 }
    }

    fn array<const N: usize>(&mut self, what: &str) -> Result<[u8; N], GgufError> {
        let (&head, _) = self.rest().split_first_chunk::<N>().ok_or_else(|| self.truncated(what, N as u64))?;
        self.pos += N;
        Ok(head)
    }

    fn u32(&mut self, what: &str) -> Result<u32, GgufError> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    fn u64(&mut self, what: &str) -> Result<u64, GgufError> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    fn value_type(&mut self, what: &str) -> Result<ValueType, GgufError> {
        let id = self.u32(what)?;
        ValueType::from_id(id).ok_or_else(|| GgufError::malformed(what, format!("{id} is not a value type")))
    }

    fn skip(&mut self, count: u64, what: &str) -> Result<Range<usize>, GgufError> {
        let left = self.rest().len() as u64;
        if count > left {
            return Err(self.truncated(what, count));
        }
        let start = self.pos;
        // `count` is at most the length of a slice, so neither step can overflow.
        self.pos += count as usize;
        Ok(start..self.pos)
    }

    fn string(&mut self, what: &str, longest: u64) -> Result<Range<usize>, GgufError> {
        let len = self.u64(what)?;
        limit(format_args!("the string length of {what}"), len, longest)?;
        self.skip(len, what)
    }

    fn text(&mut self, what: &str, longest: u64) -> Result<&'a str, GgufError> {
        let range = self.string(what, longest)?;
        let bytes = self.bytes.get(range).unwrap_or(&[]);
        std::str::from_utf8(bytes).map_err(|_| GgufError::malformed(what, "is not valid UTF-8"))
    }
}
