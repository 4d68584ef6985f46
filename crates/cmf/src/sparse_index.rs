//! The sparse index: for every mask and live layer the groups of 32 neurons and the heads
//! that are used (docs/cmf-format.md §11). It follows from the masks.

use crate::envelope::u32_at;
use crate::masks::bit;
use crate::{CmfError, MaskCatalogue, MaskShape};

const HEAD_LEN: usize = 8;
const ENTRY_LEN: usize = 16;

/// What one mask uses of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// Task of the mask.
    pub task_id: u32,
    /// Layer.
    pub layer: u32,
    /// Groups of 32 neurons with at least one in use.
    pub groups: Vec<u16>,
    /// Heads in use.
    pub heads: Vec<u8>,
}

/// All entries, masks in the order of the file, layers ascending.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SparseIndex {
    /// The entries.
    pub entries: Vec<IndexEntry>,
}

impl SparseIndex {
    /// The index of these masks.
    ///
    /// # Errors
    /// [`CmfError::IndexLimit`] when groups do not fit 16 bits or heads 8 bits.
    pub fn from_masks(catalogue: &MaskCatalogue, shape: MaskShape) -> Result<Self, CmfError> {
        let groups = shape.intermediate_size.div_ceil(32);
        let limits = [("groups", groups, 1 << 16), ("heads", shape.num_heads, 1 << 8)];
        for (what, count, max) in limits {
            if count > max {
                return Err(CmfError::IndexLimit { what, count: count as u64, max: max as u64 });
            }
        }
        let mut entries = Vec::new();
        for mask in &catalogue.masks {
            for layer in (0..shape.num_layers).filter(|&l| mask.layer(l)) {
                let neurons = mask.neuron_bits(layer);
                let heads = mask.head_bits(layer);
                entries.push(IndexEntry {
                    task_id: mask.task_id,
                    layer: layer as u32,
                    groups: neurons
                        .chunks(4)
                        .enumerate()
                        .filter(|(_, bytes)| bytes.iter().any(|b| *b != 0))
                        .map(|(group, _)| group as u16)
                        .collect(),
                    heads: (0..shape.num_heads).filter(|&h| bit(heads, h)).map(|h| h as u8).collect(),
                });
            }
        }
        Ok(Self { entries })
    }

    /// Reads the section (rule 19 of §13, and stricter: layers, groups and heads exist).
    pub(crate) fn parse(bytes: &[u8], shape: MaskShape) -> Result<Self, CmfError> {
        let len = bytes.len() as u64;
        let (Some(count), Some(_reserved)) = (u32_at(bytes, 0), u32_at(bytes, 4)) else {
            return Err(CmfError::IndexTooShort { len });
        };
        let mut rest = bytes.get(HEAD_LEN..).unwrap_or_default();
        if u64::from(count) > (rest.len() / ENTRY_LEN) as u64 {
            return Err(CmfError::IndexCount { entries: count, len });
        }
        let mut entries = Vec::with_capacity(count as usize);
        for number in 0..count {
            let (entry, used) = parse_entry(rest).ok_or(CmfError::IndexEntryOutOfBounds { entry: number })?;
            check_entry(&entry, number, shape)?;
            entries.push(entry);
            // The last entry's fill may be missing.
            rest = rest.get(used.next_multiple_of(4)..).unwrap_or_default();
        }
        Ok(Self { entries })
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&(self.entries.len() as u32).to_le_bytes());
        out.extend_from_slice(&0u32.to_le_bytes());
        for entry in &self.entries {
            let words = [entry.task_id, entry.layer, entry.groups.len() as u32, entry.heads.len() as u32];
            for word in words {
                out.extend_from_slice(&word.to_le_bytes());
            }
            for group in &entry.groups {
                out.extend_from_slice(&group.to_le_bytes());
            }
            out.extend_from_slice(&entry.heads);
            out.resize(out.len().next_multiple_of(4), 0);
        }
        out
    }
}

/// One entry and the bytes it took; `None` when it does not fit.
fn parse_entry(bytes: &[u8]) -> Option<(IndexEntry, usize)> {
    let n_groups = usize::try_from(u32_at(bytes, 8)?).ok()?;
    let n_heads = usize::try_from(u32_at(bytes, 12)?).ok()?;
    let groups_end = n_groups.checked_mul(2)?.checked_add(ENTRY_LEN)?;
    let heads_end = groups_end.checked_add(n_heads)?;
    let groups = bytes.get(ENTRY_LEN..groups_end)?;
    let heads = bytes.get(groups_end..heads_end)?;
    let entry = IndexEntry {
        task_id: u32_at(bytes, 0)?,
        layer: u32_at(bytes, 4)?,
        groups: groups.as_chunks::<2>().0.iter().map(|raw| u16::from_le_bytes(*raw)).collect(),
        heads: heads.to_vec(),
    };
    Some((entry, heads_end))
}

fn check_entry(entry: &IndexEntry, number: u32, shape: MaskShape) -> Result<(), CmfError> {
    let refuse = |what, value| Err(CmfError::IndexRange { entry: number, what, value });
    if u64::from(entry.layer) >= shape.num_layers as u64 {
        return refuse("layer", entry.layer);
    }
    let groups = shape.intermediate_size.div_ceil(32);
    if let Some(group) = entry.groups.iter().find(|g| usize::from(**g) >= groups) {
        return refuse("group", u32::from(*group));
    }
    if let Some(head) = entry.heads.iter().find(|h| usize::from(**h) >= shape.num_heads) {
        return refuse("head", u32::from(*head));
    }
    Ok(())
}
