//! Sequence state in host memory, shared by the executors that run on the CPU.
//!
//! Attention rows are in reference-counted blocks of [`HostState::BLOCK`] positions: snapshots share them and the
//! first write to a shared block copies it. Layers with a window drop the blocks that nothing can see any more.
//! Recurrent slots are one buffer per sequence. With [`KvDtype::Q8`] a sequence also has its newest rows exactly.

use std::sync::Arc;

use super::blocks::{BLOCK, Block, Group, Part, Place, Rows, layer_bytes, tail_bytes, zeros};
use super::rows::{KvRows, to_half};
use super::tail::Tail;
use super::{KvDtype, KvLayer, SequenceId, SequenceState, SnapshotId, StateDecl, StateLimits};
use crate::ModelError;

/// State of one sequence or snapshot.
#[derive(Clone, Default)]
struct Table {
    len: usize,
    /// Per group, per block: the rows, or none where a window has passed.
    blocks: Vec<Vec<Option<Block>>>,
    recurrent: Vec<f32>,
    tail: Tail,
}

impl Table {
    /// Bytes of what is not in blocks.
    fn own_bytes(&self) -> usize {
        self.recurrent.len() * size_of::<f32>() + self.tail.bytes()
    }
}

/// Where a layer's state is.
#[derive(Clone, Copy)]
enum Home {
    Kv(Place),
    Recurrent { offset: usize, floats: usize },
    Elsewhere,
}

/// Keys and values of one layer in one block.
#[derive(Clone, Copy)]
pub struct KvBlock<'a> {
    part: Part<'a>,
    layer: KvLayer,
    /// Position of the first row of the block.
    pub start: usize,
    /// Rows in use.
    pub len: usize,
}

impl<'a> KvBlock<'a> {
    /// Keys of a head, `[len, key_dim]`.
    pub fn keys(&self, kv_head: usize) -> KvRows<'a> {
        self.part.keys(&self.layer, kv_head, self.len)
    }

    /// Values of a head, `[len, value_dim]`.
    pub fn values(&self, kv_head: usize) -> KvRows<'a> {
        self.part.values(&self.layer, kv_head, self.len)
    }
}

/// The store. See the module text for the layout.
pub struct HostState {
    homes: Vec<Home>,
    groups: Vec<Group>,
    recurrent_floats: usize,
    /// Attention layers, and the numbers of a tail of all of them.
    kv_layers: usize,
    tail_floats: usize,
    limits: StateLimits,
    used_bytes: usize,
    sequences: Vec<Option<Table>>,
    snapshots: Vec<Option<Table>>,
}

impl HostState {
    /// Positions per block.
    pub const BLOCK: usize = BLOCK;

    /// An empty store for the given layers, which keeps keys and values as `kv`.
    pub fn new(layers: &[StateDecl], limits: StateLimits, kv: KvDtype) -> Self {
        let (mut groups, mut recurrent_floats) = (Vec::new(), 0usize);
        let (mut kv_layers, mut tail_floats) = (0, 0usize);
        let homes = layers
            .iter()
            .map(|decl| match *decl {
                StateDecl::Kv(layer) => {
                    let place = Group::place(&mut groups, layer, kv, kv_layers, tail_floats);
                    kv_layers += 1;
                    tail_floats = tail_floats.saturating_add(tail_bytes(&layer, kv) / size_of::<f32>());
                    Home::Kv(place)
                }
                StateDecl::Recurrent { floats } => {
                    let offset = recurrent_floats;
                    recurrent_floats = offset.saturating_add(floats);
                    Home::Recurrent { offset, floats }
                }
                StateDecl::Elsewhere => Home::Elsewhere,
            })
            .collect();
        let (sequences, snapshots) = (Vec::new(), Vec::new());
        let used_bytes = 0;
        Self { homes, groups, recurrent_floats, kv_layers, tail_floats, limits, used_bytes, sequences, snapshots }
    }

    /// Bytes that one sequence of `positions` positions takes.
    pub fn bytes_of_sequence(layers: &[StateDecl], positions: usize, kv: KvDtype) -> usize {
        let bytes = layers.iter().map(|decl| match decl {
            StateDecl::Kv(layer) => {
                let blocks = layer_bytes(layer, kv).saturating_mul(positions.div_ceil(BLOCK));
                blocks.saturating_add(tail_bytes(layer, kv))
            }
            StateDecl::Recurrent { floats } => floats.saturating_mul(size_of::<f32>()),
            StateDecl::Elsewhere => 0,
        });
        bytes.fold(0, usize::saturating_add)
    }

    /// Bytes in use by live sequences and snapshots.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    fn table(&self, id: SequenceId) -> Result<&Table, ModelError> {
        let table = self.sequences.get(id.0).and_then(Option::as_ref);
        table.ok_or(ModelError::UnknownHandle { kind: "sequence", id: id.0 })
    }

    fn table_mut(&mut self, id: SequenceId) -> Result<&mut Table, ModelError> {
        let table = self.sequences.get_mut(id.0).and_then(Option::as_mut);
        table.ok_or(ModelError::UnknownHandle { kind: "sequence", id: id.0 })
    }

    fn place(&self, state: usize) -> Result<Place, ModelError> {
        match self.homes.get(state) {
            Some(Home::Kv(place)) => Ok(*place),
            _ => Err(ModelError::UnknownHandle { kind: "attention state", id: state }),
        }
    }

    /// Stores one position of one layer: `keys` `[kv_heads, key_dim]`, `values` `[kv_heads, value_dim]`. The
    /// position must have been appended by the running step or reserved.
    pub fn write(
        &mut self,
        id: SequenceId,
        state: usize,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) -> Result<(), ModelError> {
        let place = self.place(state)?;
        let KvLayer { kv_heads, key_dim, value_dim, .. } = place.layer;
        if keys.len() != kv_heads * key_dim || values.len() != kv_heads * value_dim {
            return Err(ModelError::Batch(format!("state write at position {position} does not fit")));
        }
        let (block, tail) = self.own_block(id, place.group, position)?;
        let row = position % BLOCK;
        match block {
            Rows::F32(rows) => place.put(&mut rows[place.rows()], row, keys, values, |x| x),
            Rows::F16(rows) => place.put(&mut rows[place.rows()], row, keys, values, to_half),
            Rows::Q8 { codes, scales } => {
                let (codes, scales) = (&mut codes[place.rows()], &mut scales[place.scales()]);
                tail.write(&place, position, (keys, values), codes, scales);
            }
        }
        Ok(())
    }

    /// The block of a position, copied first if a snapshot holds it too, and the sequence's tail.
    fn own_block(
        &mut self,
        id: SequenceId,
        group: usize,
        position: usize,
    ) -> Result<(&mut Rows, &mut Tail), ModelError> {
        let missing = || ModelError::Batch(format!("no state block at position {position}"));
        let block = self.table(id)?.blocks[group].get(position / BLOCK).and_then(Option::as_ref).ok_or_else(missing)?;
        let copy = if Arc::strong_count(block) > 1 {
            let shared = Arc::clone(block);
            let mut copy = self.take_block(group)?;
            Arc::get_mut(&mut copy).ok_or_else(missing)?.copy_from(&shared);
            Some(copy)
        } else {
            None
        };
        let Table { blocks, tail, .. } = self.table_mut(id)?;
        let slot = blocks[group].get_mut(position / BLOCK).and_then(Option::as_mut).ok_or_else(missing)?;
        if let Some(copy) = copy {
            *slot = copy;
        }
        Ok((Arc::get_mut(slot).ok_or_else(missing)?, tail))
    }

    /// Blocks of one layer that hold positions `from..to`, in order. The first block may start before `from`.
    ///
    /// The last one is read exactly where that is possible, also when the store quantises: what a query sees of its
    /// own block does not depend on whether the block was filled in the same step, unless the step is longer than a
    /// block.
    pub fn blocks(
        &self,
        id: SequenceId,
        state: usize,
        from: usize,
        to: usize,
    ) -> Result<impl Iterator<Item = KvBlock<'_>>, ModelError> {
        let place = self.place(state)?;
        let table = self.table(id)?;
        let first = from / BLOCK;
        let blocks = table.blocks[place.group].get(first..to.div_ceil(BLOCK)).unwrap_or_default();
        if from > to || to > table.blocks[place.group].len() * BLOCK || blocks.iter().any(Option::is_none) {
            return Err(ModelError::Batch(format!("state read of {from}..{to} in {} positions", table.len)));
        }
        Ok(blocks.iter().flatten().enumerate().map(move |(i, block)| {
            let start = (first + i) * BLOCK;
            let exact = if to - start <= BLOCK { table.tail.part(&place, first + i) } else { None };
            let part = exact.unwrap_or_else(|| block.part(&place));
            KvBlock { part, layer: place.layer, start, len: BLOCK.min(to - start) }
        }))
    }

    /// The slot of a recurrent layer.
    pub fn recurrent_mut(&mut self, id: SequenceId, state: usize) -> Result<&mut [f32], ModelError> {
        let Some(&Home::Recurrent { offset, floats }) = self.homes.get(state) else {
            return Err(ModelError::UnknownHandle { kind: "recurrent state", id: state });
        };
        Ok(&mut self.table_mut(id)?.recurrent[offset..offset + floats])
    }

    /// Whether `bytes` more are within the budget.
    fn check_budget(&self, bytes: usize) -> Result<(), ModelError> {
        let (used, limit) = (self.used_bytes, self.limits.max_bytes);
        if used.saturating_add(bytes) > limit {
            return Err(ModelError::StateFull { wanted: bytes, used, limit });
        }
        Ok(())
    }

    /// A block of a group, counted.
    fn take_block(&mut self, group: usize) -> Result<Block, ModelError> {
        let bytes = self.groups[group].block_bytes();
        self.check_budget(bytes)?;
        let block = self.groups[group].take()?;
        self.used_bytes += bytes;
        Ok(block)
    }

    fn free(&mut self, group: usize, blocks: impl IntoIterator<Item = Block>) {
        let group = &mut self.groups[group];
        self.used_bytes -= group.give_back(blocks) * group.block_bytes();
    }

    fn free_table(&mut self, table: Table) {
        self.used_bytes -= table.own_bytes();
        for (group, blocks) in table.blocks.into_iter().enumerate() {
            self.free(group, blocks.into_iter().flatten());
        }
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

    fn snapshot_table(&self, id: SnapshotId) -> Result<&Table, ModelError> {
        let table = self.snapshots.get(id.0).and_then(Option::as_ref);
        table.ok_or(ModelError::UnknownHandle { kind: "snapshot", id: id.0 })
    }

    /// Blocks that a group lacks for `positions` positions.
    fn lacking(table: &Table, group: usize, positions: usize) -> usize {
        positions.div_ceil(BLOCK).saturating_sub(table.blocks[group].len())
    }

    /// Gives every group the blocks for `positions` positions.
    fn grow(&mut self, id: SequenceId, positions: usize) -> Result<(), ModelError> {
        let limit = self.limits.max_positions;
        if positions > limit {
            return Err(ModelError::ContextFull { wanted: positions, limit });
        }
        let table = self.table(id)?;
        let groups = self.groups.iter().enumerate();
        let bytes: usize = groups.map(|(i, group)| Self::lacking(table, i, positions) * group.block_bytes()).sum();
        self.check_budget(bytes)?;
        for group in 0..self.groups.len() {
            let count = Self::lacking(self.table(id)?, group, positions);
            for _ in 0..count {
                let block = self.take_block(group)?;
                self.table_mut(id)?.blocks[group].push(Some(block));
            }
        }
        Ok(())
    }

    /// Drops what no query from position `position` on can see.
    fn forget(&mut self, id: SequenceId, group: usize, position: usize) -> Result<(), ModelError> {
        let gone = self.groups[group].first_visible(position) / BLOCK;
        let blocks = &mut self.table_mut(id)?.blocks[group];
        let gone = gone.min(blocks.len());
        // Older ones are gone already, so the walk backwards ends at the first hole.
        let dropped: Vec<Block> = blocks[..gone].iter_mut().rev().map_while(Option::take).collect();
        self.free(group, dropped);
        Ok(())
    }
}

impl SequenceState for HostState {
    fn open(&mut self) -> Result<SequenceId, ModelError> {
        let floats = self.recurrent_floats.saturating_add(self.tail_floats);
        self.check_budget(floats.saturating_mul(size_of::<f32>()))?;
        let (recurrent, tail) = (zeros(self.recurrent_floats)?, Tail::new(self.tail_floats, self.kv_layers)?);
        let blocks = vec![Vec::new(); self.groups.len()];
        let table = Table { len: 0, blocks, recurrent, tail };
        self.used_bytes += table.own_bytes();
        Ok(SequenceId(Self::insert(&mut self.sequences, table)))
    }

    fn close(&mut self, id: SequenceId) -> Result<(), ModelError> {
        let table = std::mem::take(self.table_mut(id)?);
        self.sequences[id.0] = None;
        self.free_table(table);
        Ok(())
    }

    fn len(&self, id: SequenceId) -> Result<usize, ModelError> {
        Ok(self.table(id)?.len)
    }

    fn append(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError> {
        let len = self.table(id)?.len;
        let wanted = len.saturating_add(count);
        self.grow(id, wanted)?;
        for group in 0..self.groups.len() {
            self.forget(id, group, len)?;
        }
        self.table_mut(id)?.len = wanted;
        Ok(())
    }

    fn reserve(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError> {
        let len = self.table(id)?.len;
        self.grow(id, len.saturating_add(count))
    }

    fn can_truncate(&self, id: SequenceId, len: usize) -> Result<bool, ModelError> {
        let table = self.table(id)?;
        if len == table.len || len == 0 {
            return Ok(true);
        }
        let kept = self.groups.iter().zip(&table.blocks).all(|(group, blocks)| {
            let first = group.first_visible(len) / BLOCK;
            blocks.get(first..len.div_ceil(BLOCK)).is_some_and(|blocks| blocks.iter().all(Option::is_some))
        });
        Ok(len < table.len && table.recurrent.is_empty() && kept)
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), ModelError> {
        if !self.can_truncate(id, len)? {
            let from = self.table(id)?.len;
            return Err(ModelError::CannotRewind { from, to: len });
        }
        let table = self.table_mut(id)?;
        if len == 0 {
            table.recurrent.fill(0.0);
        }
        table.len = len;
        for group in 0..self.groups.len() {
            let blocks = &mut self.table_mut(id)?.blocks[group];
            let keep = len.div_ceil(BLOCK).min(blocks.len());
            let dropped = blocks.split_off(keep);
            self.free(group, dropped.into_iter().flatten());
        }
        Ok(())
    }

    fn snapshot(&mut self, id: SequenceId) -> Result<SnapshotId, ModelError> {
        let bytes = self.table(id)?.own_bytes();
        self.check_budget(bytes)?;
        let table = self.table(id)?.clone();
        self.used_bytes += bytes;
        Ok(SnapshotId(Self::insert(&mut self.snapshots, table)))
    }

    fn restore(&mut self, id: SequenceId, snapshot: SnapshotId) -> Result<(), ModelError> {
        let saved = self.snapshot_table(snapshot)?.clone();
        let old = std::mem::replace(self.table_mut(id)?, saved);
        // The slots of the sequence stay charged: only their content changed.
        self.used_bytes += old.own_bytes();
        self.free_table(old);
        Ok(())
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), ModelError> {
        self.snapshot_table(snapshot)?;
        let table = self.snapshots[snapshot.0].take().unwrap_or_default();
        self.free_table(table);
        Ok(())
    }
}

#[cfg(test)]
#[path = "host_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "kv_tests.rs"]
mod kv_tests;
