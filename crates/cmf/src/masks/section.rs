//! The masks section as bytes, docs/cmf-format.md §9.

use super::{Mask, MaskCatalogue, MaskPriority, MaskQuality, MaskShape};
use crate::CmfError;
use crate::envelope::u32_at;
use serde::{Deserialize, Serialize};

const HEAD_LEN: u64 = 8;
const BLOB_ALIGN: u64 = 8;

#[derive(Serialize, Deserialize)]
struct Meta {
    default_task: String,
    masks: Vec<MaskMeta>,
}

#[derive(Serialize, Deserialize)]
struct MaskMeta {
    task_id: u32,
    name: String,
    description: Option<String>,
    sparsity: f32,
    quality: Option<MaskQuality>,
    parent: Option<String>,
    priority: MaskPriority,
    #[serde(default)]
    has_hot_pack: bool,
    blob_off: u64,
    blob_len: u64,
}

/// Reads the section (rule 18 of §13, and stricter: no overlap, tail bits 0).
pub(crate) fn parse(bytes: &[u8], shape: MaskShape) -> Result<MaskCatalogue, CmfError> {
    let len = bytes.len() as u64;
    let (Some(announced), Some(meta_len)) = (u32_at(bytes, 0), u32_at(bytes, 4)) else {
        return Err(CmfError::MasksTooShort { len });
    };
    let meta_end = HEAD_LEN + u64::from(meta_len);
    let Some(meta) = slice(bytes, HEAD_LEN, meta_end) else {
        return Err(CmfError::MasksMetaOutOfBounds { meta_len, len });
    };
    let meta: Meta = serde_json::from_slice(meta).map_err(|e| CmfError::MasksJson(e.to_string()))?;
    if meta.masks.len() as u64 != u64::from(announced) {
        return Err(CmfError::MaskCount { announced, described: meta.masks.len() });
    }
    check_blobs(&meta.masks, meta_end, len, shape)?;
    let masks = meta.masks.into_iter().map(|m| read_mask(m, bytes, shape)).collect::<Result<_, _>>()?;
    Ok(MaskCatalogue { default_task: meta.default_task, masks })
}

fn slice(bytes: &[u8], start: u64, end: u64) -> Option<&[u8]> {
    bytes.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
}

/// Sizes and places of the bits. They may not overlap, else a small section could be
/// unfolded into masks of many times its size.
fn check_blobs(masks: &[MaskMeta], meta_end: u64, section_len: u64, shape: MaskShape) -> Result<(), CmfError> {
    let expected = shape.blob_len() as u64;
    let mut used = Vec::with_capacity(masks.len());
    for mask in masks {
        let name = || mask.name.clone();
        if mask.blob_len != expected {
            return Err(CmfError::MaskLength { name: name(), expected, found: mask.blob_len });
        }
        let end = mask.blob_off.checked_add(mask.blob_len);
        match end.filter(|end| *end <= section_len) {
            Some(end) => used.push((mask.blob_off, end, &mask.name)),
            None => return Err(CmfError::MaskOutOfBounds { name: name() }),
        }
    }
    used.sort_unstable();
    let mut free = meta_end;
    for (start, end, name) in used {
        if start < end && start < free {
            return Err(CmfError::MasksOverlap { name: name.clone() });
        }
        free = free.max(end);
    }
    Ok(())
}

fn read_mask(meta: MaskMeta, bytes: &[u8], shape: MaskShape) -> Result<Mask, CmfError> {
    let end = meta.blob_off.saturating_add(meta.blob_len);
    let Some(bits) = slice(bytes, meta.blob_off, end) else {
        return Err(CmfError::MaskOutOfBounds { name: meta.name });
    };
    let mask = Mask {
        task_id: meta.task_id,
        name: meta.name,
        description: meta.description,
        sparsity: meta.sparsity,
        quality: meta.quality,
        parent: meta.parent,
        priority: meta.priority,
        has_hot_pack: meta.has_hot_pack,
        shape,
        bits: bits.to_vec(),
    };
    check_numbers(&mask)?;
    check_tails(&mask)?;
    Ok(mask)
}

fn check_numbers(mask: &Mask) -> Result<(), CmfError> {
    let quality = mask.quality.as_ref();
    let numbers = [
        ("sparsity", Some(mask.sparsity)),
        ("quality.value", quality.map(|q| q.value)),
        ("quality.baseline_dense", quality.and_then(|q| q.baseline_dense)),
    ];
    for (key, value) in numbers {
        if value.is_some_and(|v| !v.is_finite()) {
            return Err(CmfError::MaskNumber { name: mask.name.clone(), key });
        }
    }
    Ok(())
}

fn check_tails(mask: &Mask) -> Result<(), CmfError> {
    let shape = mask.shape;
    let tail = |row: &[u8], bits: usize| {
        let used = bits % 8;
        used != 0 && row.last().is_some_and(|last| last >> used != 0)
    };
    let refuse = |what| Err(CmfError::MaskTailBits { name: mask.name.clone(), what });
    for layer in 0..shape.num_layers {
        if tail(mask.neuron_bits(layer), shape.intermediate_size) {
            return refuse("neuron");
        }
        if tail(mask.head_bits(layer), shape.num_heads) {
            return refuse("head");
        }
    }
    if tail(mask.layer_bits(), shape.num_layers) {
        return refuse("layer");
    }
    Ok(())
}

/// The section as bytes. The description holds the offsets of the bits, which depend on its
/// own length: the length is raised until it stands.
pub(crate) fn encode(catalogue: &MaskCatalogue, shape: MaskShape) -> Result<Vec<u8>, CmfError> {
    let blob_len = shape.blob_len() as u64;
    for mask in &catalogue.masks {
        if mask.shape != shape {
            return Err(CmfError::MaskLength {
                name: mask.name.clone(),
                expected: blob_len,
                found: mask.bits.len() as u64,
            });
        }
        check_numbers(mask)?;
    }
    let mut meta_len = 0u64;
    let meta = loop {
        let meta = meta_json(catalogue, meta_len, blob_len)?;
        if meta.len() as u64 == meta_len {
            break meta;
        }
        meta_len = meta.len() as u64;
    };
    let too_long = |_| CmfError::MasksJson(format!("{meta_len} bytes are too many"));
    let mut out = Vec::new();
    let count = u32::try_from(catalogue.masks.len()).map_err(too_long)?;
    out.extend_from_slice(&count.to_le_bytes());
    let meta_len = u32::try_from(meta_len).map_err(too_long)?;
    out.extend_from_slice(&meta_len.to_le_bytes());
    out.extend_from_slice(&meta);
    for mask in &catalogue.masks {
        out.resize(out.len().next_multiple_of(BLOB_ALIGN as usize), 0);
        out.extend_from_slice(&mask.bits);
    }
    Ok(out)
}

fn meta_json(catalogue: &MaskCatalogue, meta_len: u64, blob_len: u64) -> Result<Vec<u8>, CmfError> {
    let mut at = HEAD_LEN + meta_len;
    let masks = catalogue.masks.iter().map(|mask| {
        let blob_off = at.next_multiple_of(BLOB_ALIGN);
        at = blob_off + blob_len;
        MaskMeta {
            task_id: mask.task_id,
            name: mask.name.clone(),
            description: mask.description.clone(),
            sparsity: mask.sparsity,
            quality: mask.quality.clone(),
            parent: mask.parent.clone(),
            priority: mask.priority,
            has_hot_pack: mask.has_hot_pack,
            blob_off,
            blob_len,
        }
    });
    let meta = Meta { default_task: catalogue.default_task.clone(), masks: masks.collect() };
    serde_json::to_vec(&meta).map_err(|e| CmfError::MasksJson(e.to_string()))
}
