//! Blocks of key/value rows, and the layers that share a block table.

use std::ops::Range;
use std::sync::Arc;

use super::rows::{KvRows, KvValues};
use super::tail::TAIL_BLOCKS;
use super::{KvDtype, KvLayer};
use crate::ModelError;

/// Positions per block.
pub(super) const BLOCK: usize = 32;

/// [`BLOCK`] positions of all layers of a group: per layer the keys as `[kv_heads][BLOCK][key_dim]`, then the values
/// as `[kv_heads][BLOCK][value_dim]`.
#[derive(Clone)]
pub(super) enum Rows {
    /// See [`KvDtype::F32`].
    F32(Vec<f32>),
    /// See [`KvDtype::F16`]: bit patterns.
    F16(Vec<u16>),
    /// See [`KvDtype::Q8`]; `scales` are, per layer, those of the keys `[kv_heads][key_dim]`, then those of the values
    /// `[kv_heads][BLOCK]`.
    Q8 { codes: Vec<i8>, scales: Vec<f32> },
}

/// A block that snapshots may share.
pub(super) type Block = Arc<Rows>;

/// A buffer of zeros; an error where the process would otherwise end for want of memory.
pub(super) fn zeros<T: Clone + Default>(count: usize) -> Result<Vec<T>, ModelError> {
    let mut buffer = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    buffer.try_reserve_exact(count).map_err(|_| ModelError::OutOfMemory { bytes })?;
    buffer.resize(count, T::default());
    Ok(buffer)
}

impl Rows {
    /// The content of a block of the same group.
    pub(super) fn copy_from(&mut self, other: &Self) {
        match (self, other) {
            (Self::F32(to), Self::F32(from)) => to.copy_from_slice(from),
            (Self::F16(to), Self::F16(from)) => to.copy_from_slice(from),
            (Self::Q8 { codes, scales }, Self::Q8 { codes: from_codes, scales: from_scales }) => {
                codes.copy_from_slice(from_codes);
                scales.copy_from_slice(from_scales);
            }
            // All blocks of a store have the same type.
            (to, from) => to.clone_from(from),
        }
    }

    /// One layer's part.
    pub(super) fn part(&self, place: &Place) -> Part<'_> {
        match self {
            Self::F32(rows) => Part::F32(&rows[place.rows()]),
            Self::F16(rows) => Part::F16(&rows[place.rows()]),
            Self::Q8 { codes, scales } => Part::Q8 { codes: &codes[place.rows()], scales: &scales[place.scales()] },
        }
    }
}

/// Rows of one layer in one block.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Q8 { codes: &'a [i8], scales: &'a [f32] },
}

impl<'a> Part<'a> {
    /// The first `len` keys of a head.
    pub(super) fn keys(self, layer: &KvLayer, head: usize, len: usize) -> KvRows<'a> {
        let at = head * BLOCK * layer.key_dim..(head * BLOCK + len) * layer.key_dim;
        let values = match self {
            Self::F32(rows) => KvValues::F32(&rows[at]),
            Self::F16(rows) => KvValues::F16(&rows[at]),
            Self::Q8 { codes, scales } => {
                let scales = &scales[head * layer.key_dim..(head + 1) * layer.key_dim];
                KvValues::Q8Channel { codes: &codes[at], scales }
            }
        };
        KvRows::new(values, layer.key_dim)
    }

    /// The first `len` values of a head.
    pub(super) fn values(self, layer: &KvLayer, head: usize, len: usize) -> KvRows<'a> {
        let first = key_numbers(layer) + head * BLOCK * layer.value_dim;
        let at = first..first + len * layer.value_dim;
        let values = match self {
            Self::F32(rows) => KvValues::F32(&rows[at]),
            Self::F16(rows) => KvValues::F16(&rows[at]),
            Self::Q8 { codes, scales } => {
                let scales = if layer.value_dim == 0 {
                    &[]
                } else {
                    let first = layer.kv_heads * layer.key_dim + head * BLOCK;
                    &scales[first..first + len]
                };
                KvValues::Q8Row { codes: &codes[at], scales }
            }
        };
        KvRows::new(values, layer.value_dim)
    }
}

/// Numbers of all keys of a layer in a block.
pub(super) fn key_numbers(layer: &KvLayer) -> usize {
    layer.kv_heads * layer.key_dim * BLOCK
}

/// Numbers of all keys and values of a layer in a block.
pub(super) fn numbers(layer: &KvLayer) -> usize {
    layer.kv_heads.saturating_mul(layer.key_dim.saturating_add(layer.value_dim)).saturating_mul(BLOCK)
}

/// Scales of a layer in a block.
fn scales(layer: &KvLayer) -> usize {
    let values = if layer.value_dim == 0 { 0 } else { BLOCK };
    layer.kv_heads.saturating_mul(layer.key_dim.saturating_add(values))
}

/// Bytes of a layer in a block.
pub(super) fn layer_bytes(layer: &KvLayer, kv: KvDtype) -> usize {
    bytes_of(numbers(layer), scales(layer), kv)
}

/// Bytes of the exact rows that a sequence has of a layer, next to its blocks.
pub(super) fn tail_bytes(layer: &KvLayer, kv: KvDtype) -> usize {
    if kv == KvDtype::Q8 { numbers(layer).saturating_mul(TAIL_BLOCKS * size_of::<f32>()) } else { 0 }
}

fn bytes_of(numbers: usize, scales: usize, kv: KvDtype) -> usize {
    match kv {
        KvDtype::F32 => numbers.saturating_mul(size_of::<f32>()),
        KvDtype::F16 => numbers.saturating_mul(size_of::<u16>()),
        KvDtype::Q8 => numbers.saturating_add(scales.saturating_mul(size_of::<f32>())),
    }
}

/// Layers with the same window: they need the same positions, so they share a block table.
pub(super) struct Group {
    /// Window of these layers.
    pub(super) window: Option<usize>,
    kv: KvDtype,
    /// Numbers of a block.
    numbers: usize,
    /// Scales of a block.
    scales: usize,
    free: Vec<Block>,
}

/// Where a layer's rows are.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Index of its group.
    pub(super) group: usize,
    /// Numbers of a block that come before this layer's.
    offset: usize,
    /// Scales of a block that come before this layer's.
    scale_offset: usize,
    /// Its place among the attention layers.
    pub(super) index: usize,
    /// Numbers of a tail that come before this layer's.
    pub(super) tail_offset: usize,
    /// Its geometry.
    pub(super) layer: KvLayer,
}

impl Place {
    /// Its numbers in a block.
    pub(super) fn rows(&self) -> Range<usize> {
        self.offset..self.offset + numbers(&self.layer)
    }

    /// Its scales in a block.
    pub(super) fn scales(&self) -> Range<usize> {
        self.scale_offset..self.scale_offset + scales(&self.layer)
    }

    /// Writes one position, number `row` of its block, to this layer's part of a block.
    pub(super) fn put<T>(&self, part: &mut [T], row: usize, keys: &[f32], values: &[f32], put: impl Fn(f32) -> T) {
        let KvLayer { kv_heads, key_dim, value_dim, .. } = self.layer;
        let (key_side, value_side) = part.split_at_mut(key_numbers(&self.layer));
        for (side, width, from) in [(key_side, key_dim, keys), (value_side, value_dim, values)] {
            for head in 0..kv_heads {
                let target = &mut side[(head * BLOCK + row) * width..][..width];
                target.iter_mut().zip(&from[head * width..]).for_each(|(y, x)| *y = put(*x));
            }
        }
    }
}

impl Group {
    /// Sorts attention layer number `index` into the group of its window, which is made if there is none. `tail` numbers
    /// of a tail come before its own.
    pub(super) fn place(groups: &mut Vec<Group>, layer: KvLayer, kv: KvDtype, index: usize, tail: usize) -> Place {
        let found = groups.iter().position(|group| group.window == layer.window);
        let at = found.unwrap_or_else(|| {
            groups.push(Group { window: layer.window, kv, numbers: 0, scales: 0, free: Vec::new() });
            groups.len() - 1
        });
        let group = &mut groups[at];
        let (offset, scale_offset) = (group.numbers, group.scales);
        group.numbers += numbers(&layer);
        group.scales += scales(&layer);
        Place { group: at, offset, scale_offset, index, tail_offset: tail, layer }
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        bytes_of(self.numbers, self.scales, self.kv)
    }

    /// A block that nobody else holds, from the free list if possible.
    pub(super) fn take(&mut self) -> Result<Block, ModelError> {
        if let Some(block) = self.free.pop() {
            return Ok(block);
        }
        let rows = match self.kv {
            KvDtype::F32 => Rows::F32(zeros(self.numbers)?),
            KvDtype::F16 => Rows::F16(zeros(self.numbers)?),
            KvDtype::Q8 => Rows::Q8 { codes: zeros(self.numbers)?, scales: zeros(self.scales)? },
        };
        Ok(Arc::new(rows))
    }

    /// Takes blocks back and returns how many of them nobody else holds.
    pub(super) fn give_back(&mut self, blocks: impl IntoIterator<Item = Block>) -> usize {
        let before = self.free.len();
        self.free.extend(blocks.into_iter().filter(|block| Arc::strong_count(block) == 1));
        self.free.len() - before
    }

    /// First position that a query at `position` or later can still see.
    pub(super) fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}
