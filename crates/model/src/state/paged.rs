//! Paged key/value store in host memory, shared by the executors that run on the CPU.
//!
//! A block holds [`PagedKv::BLOCK`] positions of *all* layers, so a sequence has one block table. Within a block
//! layer `l` has its keys as `[kv_heads][BLOCK][head_dim]` f32, then its values in the same layout. Blocks are
//! reference-counted: snapshots share them and the first write to a shared block copies it.

use std::sync::Arc;

use super::{SequenceId, SequenceState, SnapshotId, StateLimits};
use crate::ModelError;

/// Geometry of one attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
}

type Block = Arc<Vec<f32>>;

#[derive(Clone, Default)]
struct Table {
    len: usize,
    blocks: Vec<Block>,
}

/// Keys and values of one layer in one block.
#[derive(Clone, Copy)]
pub struct KvBlock<'a> {
    keys: &'a [f32],
    values: &'a [f32],
    layer: KvLayer,
    /// Position of the first row of the block.
    pub start: usize,
    /// Rows in use.
    pub len: usize,
}

impl<'a> KvBlock<'a> {
    /// Keys of a head, `[len, head_dim]`.
    pub fn keys(&self, kv_head: usize) -> &'a [f32] {
        self.head(self.keys, kv_head)
    }

    /// Values of a head, `[len, head_dim]`.
    pub fn values(&self, kv_head: usize) -> &'a [f32] {
        self.head(self.values, kv_head)
    }

    fn head(&self, side: &'a [f32], kv_head: usize) -> &'a [f32] {
        let first = kv_head * PagedKv::BLOCK * self.layer.head_dim;
        &side[first..first + self.len * self.layer.head_dim]
    }
}

/// The store. See the module text for the layout.
pub struct PagedKv {
    layers: Vec<KvLayer>,
    offsets: Vec<usize>,
    block_floats: usize,
    limits: StateLimits,
    max_blocks: usize,
    sequences: Vec<Option<Table>>,
    snapshots: Vec<Option<Table>>,
    free: Vec<Block>,
    allocated: usize,
}

impl PagedKv {
    /// Positions per block.
    pub const BLOCK: usize = 32;

    /// An empty store for the given layers.
    pub fn new(layers: Vec<KvLayer>, limits: StateLimits) -> Self {
        let mut offsets = Vec::with_capacity(layers.len());
        let mut block_floats = 0usize;
        for layer in &layers {
            offsets.push(block_floats);
            block_floats += 2 * layer.kv_heads * layer.head_dim * Self::BLOCK;
        }
        let max_blocks = limits.max_bytes / (block_floats * size_of::<f32>()).max(1);
        Self {
            layers,
            offsets,
            block_floats,
            limits,
            max_blocks,
            sequences: Vec::new(),
            snapshots: Vec::new(),
            free: Vec::new(),
            allocated: 0,
        }
    }

    /// Bytes of one block over all layers.
    pub fn block_bytes(&self) -> usize {
        self.block_floats * size_of::<f32>()
    }

    /// Blocks in use by live sequences and snapshots.
    pub fn blocks_in_use(&self) -> usize {
        self.allocated - self.free.len()
    }

    fn table(&self, id: SequenceId) -> Result<&Table, ModelError> {
        self.sequences
            .get(id.0)
            .and_then(Option::as_ref)
            .ok_or(ModelError::UnknownHandle { kind: "sequence", id: id.0 })
    }

    fn table_mut(&mut self, id: SequenceId) -> Result<&mut Table, ModelError> {
        self.sequences
            .get_mut(id.0)
            .and_then(Option::as_mut)
            .ok_or(ModelError::UnknownHandle { kind: "sequence", id: id.0 })
    }

    /// A block that nobody else holds, from the free list if possible.
    fn take_block(&mut self) -> Block {
        self.free.pop().unwrap_or_else(|| {
            self.allocated += 1;
            Arc::new(vec![0.0; self.block_floats])
        })
    }

    fn give_back(&mut self, blocks: impl IntoIterator<Item = Block>) {
        self.free.extend(blocks.into_iter().filter(|block| Arc::strong_count(block) == 1));
    }

    /// Stores one position of one layer. `keys` and `values` are `[kv_heads, head_dim]`; the position must have
    /// been appended by the running step.
    pub fn write(
        &mut self,
        id: SequenceId,
        layer: usize,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), ModelError> {
        let (Some(&geometry), Some(&offset)) = (self.layers.get(layer), self.offsets.get(layer)) else {
            return Err(ModelError::UnknownHandle { kind: "state layer", id: layer });
        };
        let KvLayer { kv_heads, head_dim } = geometry;
        let table = self.table_mut(id)?;
        if position >= table.len || keys.len() != kv_heads * head_dim || values.len() != keys.len() {
            return Err(ModelError::Batch(format!("state write at position {position} does not fit")));
        }
        let row = position % Self::BLOCK;
        let block = Arc::get_mut(&mut table.blocks[position / Self::BLOCK])
            .ok_or_else(|| ModelError::Batch(format!("state block of position {position} is shared")))?;
        let side = kv_heads * head_dim * Self::BLOCK;
        for head in 0..kv_heads {
            let at = offset + (head * Self::BLOCK + row) * head_dim;
            let source = head * head_dim..(head + 1) * head_dim;
            block[at..at + head_dim].copy_from_slice(&keys[source.clone()]);
            block[at + side..at + side + head_dim].copy_from_slice(&values[source]);
        }
        Ok(())
    }

    /// Blocks of one layer that hold positions `from..to`, in order. The first block may start before `from`.
    pub fn blocks(
        &self,
        id: SequenceId,
        layer: usize,
        from: usize,
        to: usize,
    ) -> Result<impl Iterator<Item = KvBlock<'_>>, ModelError> {
        let (Some(&geometry), Some(&offset)) = (self.layers.get(layer), self.offsets.get(layer)) else {
            return Err(ModelError::UnknownHandle { kind: "state layer", id: layer });
        };
        let table = self.table(id)?;
        if to > table.len || from > to {
            return Err(ModelError::Batch(format!("state read of {from}..{to} in {} positions", table.len)));
        }
        let side = geometry.kv_heads * geometry.head_dim * Self::BLOCK;
        let first = from / Self::BLOCK;
        Ok(table.blocks[first..to.div_ceil(Self::BLOCK)].iter().enumerate().map(move |(i, block)| {
            let start = (first + i) * Self::BLOCK;
            KvBlock {
                keys: &block[offset..offset + side],
                values: &block[offset + side..offset + 2 * side],
                layer: geometry,
                start,
                len: Self::BLOCK.min(to - start),
            }
        }))
    }

    fn insert(list: &mut Vec<Option<Table>>, table: Table) -> usize {
        match list.iter().position(Option::is_none) {
            Some(slot) => {
                list[slot] = Some(table);
                slot
            }
            None => {
                list.push(Some(table));
                list.len() - 1
            }
        }
    }
}

impl SequenceState for PagedKv {
    fn open(&mut self) -> Result<SequenceId, ModelError> {
        Ok(SequenceId(Self::insert(&mut self.sequences, Table::default())))
    }

    fn close(&mut self, id: SequenceId) -> Result<(), ModelError> {
        let table = std::mem::take(self.table_mut(id)?);
        self.sequences[id.0] = None;
        self.give_back(table.blocks);
        Ok(())
    }

    fn len(&self, id: SequenceId) -> Result<usize, ModelError> {
        Ok(self.table(id)?.len)
    }

    fn append(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError> {
        let table = self.table(id)?;
        let (len, have) = (table.len, table.blocks.len());
        let limit = self.limits.max_positions;
        let wanted = len.saturating_add(count);
        if wanted > limit {
            return Err(ModelError::ContextFull { wanted, limit });
        }
        let tail_shared =
            !len.is_multiple_of(Self::BLOCK) && table.blocks.last().is_some_and(|block| Arc::strong_count(block) > 1);
        let new_blocks = wanted.div_ceil(Self::BLOCK) - have + usize::from(tail_shared);
        let used = self.blocks_in_use();
        if used + new_blocks > self.max_blocks {
            return Err(ModelError::StateFull { wanted: new_blocks, used, limit: self.max_blocks });
        }
        let mut fresh: Vec<Block> = (0..new_blocks).map(|_| self.take_block()).collect();
        let table = self.table_mut(id)?;
        if tail_shared && let (Some(tail), Some(mut copy)) = (table.blocks.last_mut(), fresh.pop()) {
            Arc::make_mut(&mut copy).copy_from_slice(tail);
            *tail = copy;
        }
        table.blocks.append(&mut fresh);
        table.len = wanted;
        Ok(())
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), ModelError> {
        let table = self.table_mut(id)?;
        if len > table.len {
            return Err(ModelError::Batch(format!("cannot truncate {} positions to {len}", table.len)));
        }
        let dropped = table.blocks.split_off(len.div_ceil(Self::BLOCK));
        table.len = len;
        self.give_back(dropped);
        Ok(())
    }

    fn snapshot(&mut self, id: SequenceId) -> Result<SnapshotId, ModelError> {
        let table = self.table(id)?.clone();
        Ok(SnapshotId(Self::insert(&mut self.snapshots, table)))
    }

    fn restore(&mut self, id: SequenceId, snapshot: SnapshotId) -> Result<(), ModelError> {
        let saved = self
            .snapshots
            .get(snapshot.0)
            .and_then(Option::as_ref)
            .cloned()
            .ok_or(ModelError::UnknownHandle { kind: "snapshot", id: snapshot.0 })?;
        let old = std::mem::replace(self.table_mut(id)?, saved);
        self.give_back(old.blocks);
        Ok(())
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), ModelError> {
        let table = self
            .snapshots
            .get_mut(snapshot.0)
            .and_then(Option::take)
            .ok_or(ModelError::UnknownHandle { kind: "snapshot", id: snapshot.0 })?;
        self.give_back(table.blocks);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(max_blocks: usize) -> PagedKv {
        let layers = vec![KvLayer { kv_heads: 2, head_dim: 4 }, KvLayer { kv_heads: 1, head_dim: 8 }];
        let block_bytes = 2 * (2 * 4 + 8) * PagedKv::BLOCK * 4;
        PagedKv::new(layers, StateLimits { max_positions: 100, max_bytes: max_blocks * block_bytes })
    }

    fn fill(kv: &mut PagedKv, id: SequenceId, from: usize, count: usize, salt: f32) {
        kv.append(id, count).unwrap();
        for position in from..from + count {
            for layer in 0..2 {
                let row: Vec<f32> = (0..8).map(|i| salt + (position * 100 + layer * 10 + i) as f32).collect();
                let values: Vec<f32> = row.iter().map(|x| -x).collect();
                kv.write(id, layer, position, &row, &values).unwrap();
            }
        }
    }

    fn key(kv: &PagedKv, id: SequenceId, layer: usize, head: usize, position: usize) -> f32 {
        let block = kv.blocks(id, layer, position, position + 1).unwrap().next().unwrap();
        let width = kv.layers[layer].head_dim;
        assert_eq!(
            -block.keys(head)[(position - block.start) * width],
            block.values(head)[(position - block.start) * width]
        );
        block.keys(head)[(position - block.start) * width]
    }

    #[test]
    fn rows_come_back_where_they_were_written() {
        let mut kv = store(8);
        let id = kv.open().unwrap();
        fill(&mut kv, id, 0, 70, 0.0);
        assert_eq!(key(&kv, id, 0, 1, 33), 3304.0);
        assert_eq!(key(&kv, id, 1, 0, 69), 6910.0);
        let lens: Vec<_> = kv.blocks(id, 0, 40, 70).unwrap().map(|b| (b.start, b.len)).collect();
        assert_eq!(lens, [(32, 32), (64, 6)]);
    }

    #[test]
    fn a_snapshot_survives_later_writes() {
        let mut kv = store(8);
        let id = kv.open().unwrap();
        fill(&mut kv, id, 0, 40, 0.0);
        let saved = kv.snapshot(id).unwrap();
        fill(&mut kv, id, 40, 10, 0.5);
        kv.restore(id, saved).unwrap();
        assert_eq!(kv.len(id).unwrap(), 40);
        fill(&mut kv, id, 40, 1, 0.25);
        let fork = kv.open().unwrap();
        kv.restore(fork, saved).unwrap();
        fill(&mut kv, fork, 40, 1, 0.75);
        assert_eq!(key(&kv, id, 0, 0, 40), 4000.25);
        assert_eq!(key(&kv, fork, 0, 0, 40), 4000.75);
        assert_eq!(key(&kv, fork, 0, 0, 39), 3900.0);
    }

    #[test]
    fn everything_closed_leaves_no_block_in_use() {
        let mut kv = store(8);
        let a = kv.open().unwrap();
        fill(&mut kv, a, 0, 50, 0.0);
        let saved = kv.snapshot(a).unwrap();
        let b = kv.open().unwrap();
        kv.restore(b, saved).unwrap();
        fill(&mut kv, b, 50, 20, 0.0);
        kv.truncate(b, 10).unwrap();
        kv.close(a).unwrap();
        kv.release(saved).unwrap();
        kv.close(b).unwrap();
        assert_eq!(kv.blocks_in_use(), 0);
        assert!(kv.len(a).is_err() && kv.close(b).is_err());
    }

    #[test]
    fn limits_are_errors_and_change_nothing() {
        let mut kv = store(2);
        let id = kv.open().unwrap();
        fill(&mut kv, id, 0, 20, 0.0);
        assert!(matches!(kv.append(id, 81), Err(ModelError::ContextFull { wanted: 101, limit: 100 })));
        assert!(matches!(kv.append(id, 45), Err(ModelError::StateFull { wanted: 2, used: 1, limit: 2 })));
        assert!(matches!(kv.append(id, usize::MAX), Err(ModelError::ContextFull { .. })));
        assert!(kv.truncate(id, 21).is_err());
        assert_eq!(kv.len(id).unwrap(), 20);
    }
}
