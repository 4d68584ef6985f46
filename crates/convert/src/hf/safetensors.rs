//! Reads the tensors of a checkpoint: one safetensors file, or shards with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::files::MappedFile;
use crate::hf::config::{JsonFile, json_error};
use crate::{ConvertError, LoadFn, NativeDtype};

/// The single weights file.
pub(crate) const SINGLE: &str = "model.safetensors";
/// The index of sharded weights.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// One tensor as stored, not yet read.
#[derive(Debug)]
pub(crate) struct RawTensor {
    /// Name in the checkpoint.
    pub(crate) name: String,
    /// Shape in the checkpoint.
    pub(crate) shape: Vec<u64>,
    dtype: Dtype,
    map: Arc<MappedFile>,
    /// Where its bytes are, one range after the other.
    ranges: Vec<Range<usize>>,
}

impl RawTensor {
    /// The element type, if it is one that can be read.
    pub(crate) fn native(&self) -> Result<NativeDtype, ConvertError> {
        match self.dtype {
            Dtype::F32 => Ok(NativeDtype::F32),
            Dtype::F16 => Ok(NativeDtype::F16),
            Dtype::BF16 => Ok(NativeDtype::Bf16),
            other => Err(ConvertError::UnsupportedDtype { name: self.name.clone(), dtype: format!("{other:?}") }),
        }
    }

    /// All dimensions but the last, multiplied; 1 for a vector.
    pub(crate) fn rows(&self) -> u64 {
        self.shape.split_last().map_or(1, |(_, rows)| rows.iter().fold(1, |n: u64, &d| n.saturating_mul(d)))
    }

    /// The rows `rows`, as a matrix of their own of the source's row width.
    pub(crate) fn select_rows(&self, rows: &[Range<u64>]) -> Result<Self, ConvertError> {
        let outside = || ConvertError::Shape {
            name: self.name.clone(),
            expected: rows.iter().map(|r| r.end).collect(),
            found: self.shape.clone(),
        };
        let [whole] = self.ranges.as_slice() else { return Err(outside()) };
        let total = usize::try_from(self.rows()).map_err(|_| outside())?;
        let row_bytes = whole.len().checked_div(total).ok_or_else(outside)?;
        let mut ranges = Vec::with_capacity(rows.len());
        let mut height = 0u64;
        for range in rows {
            let (first, last) = (usize::try_from(range.start), usize::try_from(range.end));
            let (Ok(first), Ok(last)) = (first, last) else { return Err(outside()) };
            if first > last || last > total {
                return Err(outside());
            }
            ranges.push(whole.start + first * row_bytes..whole.start + last * row_bytes);
            height += range.end - range.start;
        }
        let shape = vec![height, self.shape.last().copied().unwrap_or(1)];
        Ok(Self { name: self.name.clone(), shape, dtype: self.dtype, map: Arc::clone(&self.map), ranges })
    }

    /// A function that reads all values as f32.
    pub(crate) fn loader(&self) -> Result<LoadFn, ConvertError> {
        let native = self.native()?;
        let (map, ranges, name) = (Arc::clone(&self.map), self.ranges.clone(), self.name.clone());
        Ok(Box::new(move || {
            let mut values = Vec::new();
            for range in &ranges {
                let bytes = map.bytes().get(range.clone()).filter(|_| map.has_its_length());
                let bytes = bytes.ok_or_else(|| ConvertError::SourceChanged { name: name.clone() })?;
                if ranges.len() == 1 {
                    return Ok(widen(native, bytes));
                }
                values.extend(widen(native, bytes));
            }
            Ok(values)
        }))
    }
}

/// Little-endian bytes to f32; every conversion is exact.
fn widen(native: NativeDtype, bytes: &[u8]) -> Vec<f32> {
    match native {
        NativeDtype::F16 => bytes.as_chunks::<2>().0.iter().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        NativeDtype::Bf16 => bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        NativeDtype::F32 | NativeDtype::Quantised => {
            bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
        }
    }
}

/// All tensors of the checkpoint in `dir`: files in name order, tensors in name order in each.
///
/// # Errors
/// No weights file, a damaged file, an index that names files outside `dir` or tensors that its
/// shards lack, a tensor stored twice.
pub(crate) fn open(dir: &Path) -> Result<Vec<RawTensor>, ConvertError> {
    let mut tensors = Vec::new();
    if dir.join(SINGLE).is_file() {
        read_file(&dir.join(SINGLE), &mut tensors)?;
    } else if let Some(index) = JsonFile::read(dir, INDEX)? {
        let placed = weight_map(&index)?;
        let shards: BTreeSet<&String> = placed.values().collect();
        for shard in shards {
            let path = dir.join(shard);
            if !path.is_file() {
                let hint = format!("{INDEX} names it");
                return Err(ConvertError::MissingFile { file: shard.clone(), hint });
            }
            read_file(&path, &mut tensors)?;
        }
        let names: BTreeSet<&str> = tensors.iter().map(|t| t.name.as_str()).collect();
        if let Some(name) = placed.keys().find(|name| !names.contains(name.as_str())) {
            return Err(ConvertError::MissingTensor { name: name.clone() });
        }
    } else {
        let hint = format!("neither it nor {INDEX} is in {}; only safetensors weights are read", dir.display());
        return Err(ConvertError::MissingFile { file: SINGLE.to_owned(), hint });
    }
    let mut seen = BTreeSet::new();
    for tensor in &tensors {
        if !seen.insert(tensor.name.as_str()) {
            return Err(ConvertError::DuplicateTensor { name: tensor.name.clone() });
        }
    }
    Ok(tensors)
}

/// The weight files of the checkpoint in `dir`, as far as they exist.
pub(crate) fn weight_files(dir: &Path) -> Vec<PathBuf> {
    let mut files = vec![dir.join(SINGLE), dir.join(INDEX)];
    if let Ok(Some(index)) = JsonFile::read(dir, INDEX)
        && let Ok(placed) = weight_map(&index)
    {
        files.extend(placed.values().collect::<BTreeSet<_>>().into_iter().map(|shard| dir.join(shard)));
    }
    files.retain(|f| f.exists());
    files
}

/// Tensor name to shard name, with the shard names checked.
pub(crate) fn weight_map(index: &JsonFile) -> Result<BTreeMap<String, String>, ConvertError> {
    let object = index.object();
    let Some(Value::Object(map)) = object.get("weight_map") else {
        return Err(json_error(INDEX, "has no object `weight_map`"));
    };
    map.iter()
        .map(|(name, shard)| match shard.as_str() {
            Some(shard) if is_plain_file_name(shard) => Ok((name.clone(), shard.to_owned())),
            Some(shard) => Err(ConvertError::ShardName { index: INDEX.to_owned(), name: shard.to_owned() }),
            None => Err(json_error(INDEX, format!("`weight_map` of `{name}` is not a string"))),
        })
        .collect()
}

/// True for one normal path component, on any platform.
fn is_plain_file_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(_)), None)) && !name.contains(['/', '\\', ':', '\0'])
}

fn read_file(path: &Path, tensors: &mut Vec<RawTensor>) -> Result<(), ConvertError> {
    let file_error = |e: safetensors::SafeTensorError| ConvertError::Safetensors {
        file: path.display().to_string(),
        reason: e.to_string(),
    };
    let map = Arc::new(MappedFile::open(path).map_err(|e| ConvertError::io(path, e))?);
    let (header_len, metadata) = SafeTensors::read_metadata(map.bytes()).map_err(file_error)?;
    // The data begins after the 8 bytes of the header length and the header.
    let data = header_len.saturating_add(8);
    let mut infos: Vec<_> = metadata.tensors().into_iter().collect();
    infos.sort_by(|a, b| a.0.cmp(&b.0));
    for (name, info) in infos {
        let (start, end) = info.data_offsets;
        let whole = data.saturating_add(start)..data.saturating_add(end);
        tensors.push(RawTensor {
            name,
            shape: info.shape.iter().map(|&d| d as u64).collect(),
            dtype: info.dtype,
            map: Arc::clone(&map),
            ranges: vec![whole],
        });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A safetensors file: (name, dtype, shape, bytes).
    fn file(entries: &[(&str, &str, &[usize], Vec<u8>)]) -> Vec<u8> {
        let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
        for (name, dtype, shape, bytes) in entries {
            let start = data.len();
            data.extend_from_slice(bytes);
            let info = serde_json::json!({"dtype": dtype, "shape": shape, "data_offsets": [start, data.len()]});
            header.insert((*name).to_owned(), info);
        }
        let header = serde_json::to_vec(&header).unwrap();
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend_from_slice(&header);
        out.extend_from_slice(&data);
        out
    }

    #[test]
    fn values_of_every_dtype_are_exact() {
        let dir = tempfile::tempdir().unwrap();
        let f32s: Vec<u8> = [1.5f32, -3.25e-9].iter().flat_map(|x| x.to_le_bytes()).collect();
        let bytes = file(&[
            ("a", "F32", &[2], f32s),
            ("b", "F16", &[2], vec![0x00, 0x3c, 0x01, 0x00]),
            ("c", "BF16", &[1, 2], vec![0x80, 0x3f, 0xc0, 0xbf]),
            ("d", "I8", &[1], vec![7]),
        ]);
        std::fs::write(dir.path().join(SINGLE), bytes).unwrap();
        let tensors = open(dir.path()).unwrap();
        let values: Vec<Vec<f32>> = tensors.iter().take(3).map(|t| t.loader().unwrap()().unwrap()).collect();
        assert_eq!(values, [vec![1.5, -3.25e-9], vec![1.0, 2f32.powi(-24)], vec![1.0, -1.5]]);
        assert_eq!(tensors[2].shape, [1, 2]);
        let text = tensors[3].native().unwrap_err().to_string();
        assert!(text.contains("`d`") && text.contains("I8"), "{text}");
    }

    #[test]
    fn index_with_foreign_paths_is_refused() {
        for name in ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", "C:\\x", "a\\b", "."] {
            let dir = tempfile::tempdir().unwrap();
            let index = serde_json::json!({"weight_map": {"t": name}});
            std::fs::write(dir.path().join(INDEX), index.to_string()).unwrap();
            let error = open(dir.path()).unwrap_err();
            assert!(matches!(error, ConvertError::ShardName { .. }), "{name}: {error}");
        }
    }

    #[test]
    fn incomplete_and_damaged_checkpoints_are_named() {
        let dir = tempfile::tempdir().unwrap();
        assert!(open(dir.path()).unwrap_err().to_string().contains(SINGLE));
        let index = |map: serde_json::Value| {
            std::fs::write(dir.path().join(INDEX), serde_json::json!({"weight_map": map}).to_string()).unwrap();
        };
        index(serde_json::json!({"t": "s1.safetensors", "u": "s2.safetensors"}));
        assert!(open(dir.path()).unwrap_err().to_string().contains("s1.safetensors is missing"));
        let one = file(&[("t", "F32", &[1], vec![0; 4])]);
        std::fs::write(dir.path().join("s1.safetensors"), &one).unwrap();
        std::fs::write(dir.path().join("s2.safetensors"), file(&[("v", "F32", &[1], vec![0; 4])])).unwrap();
        assert!(open(dir.path()).unwrap_err().to_string().contains("tensor `u` is missing"));
        std::fs::write(dir.path().join("s2.safetensors"), file(&[("t", "F32", &[1], vec![0; 4])])).unwrap();
        index(serde_json::json!({"t": "s1.safetensors", "x": "s2.safetensors"}));
        assert!(open(dir.path()).unwrap_err().to_string().contains("is missing"));
        std::fs::write(
            dir.path().join("s2.safetensors"),
            file(&[("t", "F32", &[1], vec![0; 4]), ("x", "F32", &[1], vec![0; 4])]),
        )
        .unwrap();
        assert!(open(dir.path()).unwrap_err().to_string().contains("`t` occurs twice"));
        for damaged in [Vec::new(), one[..one.len() - 1].to_vec(), vec![0xff; 64]] {
            std::fs::write(dir.path().join(SINGLE), damaged).unwrap();
            let error = open(dir.path()).unwrap_err();
            assert!(error.to_string().contains(SINGLE), "{error}");
        }
    }
}
