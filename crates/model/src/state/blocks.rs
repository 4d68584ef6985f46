//! Blocks of key/value rows, and the layers that share a block table.

use std::sync::Arc;

use super::KvLayer;
use crate::ModelError;

/// Positions per block.
pub(super) const BLOCK: usize = 32;

/// [`BLOCK`] positions of all layers of a group: per layer the keys as `[kv_heads][BLOCK][key_dim]`, then the values
/// as `[kv_heads][BLOCK][value_dim]`, all f32.
pub(super) type Block = Arc<Vec<f32>>;

/// A buffer of zeros; an error where the process would otherwise end for want of memory.
pub(super) fn zeros(floats: usize) -> Result<Vec<f32>, ModelError> {
    let mut buffer = Vec::new();
    let bytes = floats.saturating_mul(size_of::<f32>());
    buffer.try_reserve_exact(floats).map_err(|_| ModelError::OutOfMemory { bytes })?;
    buffer.resize(floats, 0.0);
    Ok(buffer)
}

/// Layers with the same window: they need the same positions, so they share a block table.
pub(super) struct Group {
    /// Window of these layers.
    pub(super) window: Option<usize>,
    /// Floats of a block.
    pub(super) block_floats: usize,
    free: Vec<Block>,
}

/// Where a layer's rows are.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Index of its group.
    pub(super) group: usize,
    /// Floats of a block that come before this layer's keys.
    pub(super) offset: usize,
    /// Its geometry.
    pub(super) layer: KvLayer,
}

impl Place {
    /// Floats of all keys of this layer in a block.
    pub(super) fn key_floats(&self) -> usize {
        self.layer.kv_heads * self.layer.key_dim * BLOCK
    }

    /// Floats of all values of this layer in a block.
    pub(super) fn value_floats(&self) -> usize {
        self.layer.kv_heads * self.layer.value_dim * BLOCK
    }
}

impl Group {
    /// Sorts a layer into the group of its window, which is made if there is none.
    pub(super) fn place(groups: &mut Vec<Group>, layer: KvLayer) -> Place {
        let found = groups.iter().position(|group| group.window == layer.window);
        let index = found.unwrap_or_else(|| {
            groups.push(Group { window: layer.window, block_floats: 0, free: Vec::new() });
            groups.len() - 1
        });
        let place = Place { group: index, offset: groups[index].block_floats, layer };
        groups[index].block_floats += place.key_floats() + place.value_floats();
        place
    }

    /// Bytes of a block.
    pub(super) fn block_bytes(&self) -> usize {
        self.block_floats * size_of::<f32>()
    }

    /// A block that nobody else holds, from the free list if possible.
    pub(super) fn take(&mut self) -> Result<Block, ModelError> {
        match self.free.pop() {
            Some(block) => Ok(block),
            None => zeros(self.block_floats).map(Arc::new),
        }
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
