//! State of sequences in device memory.
//!
//! The bookkeeping is on the host: block tables with reference counts for attention (a block is 32 positions of all
//! layers with one window), one slot per sequence and snapshot for the recurrent layers. Copies and clears that it
//! asks for run before the next step, in order.

use std::collections::HashSet;

use cortiq_model::{
    HostState, KvDtype, KvLayer, ModelError, SequenceId, SequenceState, SnapshotId, StateDecl, StateId, StateLimits,
};

use crate::slots::padded;
use crate::{Gpu, GpuError};

/// Positions per block.
pub(crate) const BLOCK: usize = HostState::BLOCK;

/// A block that a window has passed.
pub(crate) const NO_BLOCK: u32 = u32::MAX;

/// Blocks of the first buffers, unless a whole sequence takes fewer.
const FEWEST_BLOCKS: usize = 16;

/// Slots of the first buffers.
const FEWEST_SLOTS: usize = 2;

/// Layers with one window: they share block tables.
struct Group {
    window: Option<usize>,
    /// Bytes of a block over all layers of the group.
    block_bytes: usize,
    /// Holders of each block.
    holders: Vec<u32>,
    free: Vec<u32>,
}

impl Group {
    fn first_visible(&self, position: usize) -> usize {
        self.window.map_or(0, |window| (position + 1).saturating_sub(window))
    }
}

/// State of one sequence or snapshot.
#[derive(Clone, Default)]
struct Table {
    len: usize,
    /// Per group, the block of every 32 positions.
    blocks: Vec<Vec<u32>>,
    /// Slot in the buffers of the recurrent layers.
    slot: Option<u32>,
}

/// Something to do on the device before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pending {
    CopyBlock { group: usize, from: u32, to: u32 },
    CopySlot { from: u32, to: u32 },
    ClearSlot(u32),
}

/// A block of a group, or a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    Block(usize, u32),
    Slot(u32),
}

impl Place {
    /// Number of blocks or slots up to this one.
    fn end(&self) -> usize {
        match self {
            Self::Block(_, number) | Self::Slot(number) => *number as usize + 1,
        }
    }
}

impl Pending {
    /// What it reads and what it writes.
    fn places(self) -> (Option<Place>, Place) {
        match self {
            Self::CopyBlock { group, from, to } => (Some(Place::Block(group, from)), Place::Block(group, to)),
            Self::CopySlot { from, to } => (Some(Place::Slot(from)), Place::Slot(to)),
            Self::ClearSlot(slot) => (None, Place::Slot(slot)),
        }
    }
}

/// Where a layer's state is.
enum Home {
    Kv { group: usize, keys: wgpu::Buffer, values: wgpu::Buffer, key_bytes: u64, value_bytes: u64 },
    Recurrent { buffer: wgpu::Buffer, slot_bytes: u64 },
    Elsewhere,
}

/// The store.
pub(crate) struct DeviceState {
    kv: KvDtype,
    homes: Vec<Home>,
    groups: Vec<Group>,
    /// Blocks and slots that the buffers hold.
    block_capacity: Vec<usize>,
    slot_capacity: usize,
    slots: u32,
    free_slots: Vec<u32>,
    slot_bytes: usize,
    limits: StateLimits,
    used_bytes: usize,
    sequences: Vec<Option<Table>>,
    snapshots: Vec<Option<Table>>,
    pending: Vec<Pending>,
    /// As large as the largest copy.
    scratch: wgpu::Buffer,
}

fn kv_bytes(kv: KvDtype, numbers: usize) -> usize {
    match kv {
        KvDtype::F16 => numbers * 2,
        _ => numbers * 4,
    }
}

/// Bytes of the keys and of the values of one layer in one block.
fn layer_bytes(layer: &KvLayer, kv: KvDtype) -> (usize, usize) {
    let side = |dim: usize| kv_bytes(kv, BLOCK * layer.kv_heads * dim);
    (side(layer.key_dim), side(layer.value_dim))
}

fn slot_bytes(floats: usize) -> usize {
    padded(floats) * 4
}

impl DeviceState {
    /// An empty store. `kv` is f32 or f16.
    pub(crate) fn new(gpu: &Gpu, layers: &[StateDecl], limits: StateLimits, kv: KvDtype) -> Result<Self, GpuError> {
        let mut groups: Vec<Group> = Vec::new();
        let mut homes = Vec::new();
        let mut all_slot_bytes = 0;
        for decl in layers {
            match *decl {
                StateDecl::Kv(layer) => {
                    let found = groups.iter().position(|group| group.window == layer.window);
                    let group = found.unwrap_or_else(|| {
                        let (holders, free) = (Vec::new(), Vec::new());
                        groups.push(Group { window: layer.window, block_bytes: 0, holders, free });
                        groups.len() - 1
                    });
                    let (keys, values) = layer_bytes(&layer, kv);
                    groups[group].block_bytes += keys + values;
                    let empty = || gpu.buffer("cache", 16);
                    let (key_bytes, value_bytes) = (keys as u64, values as u64);
                    homes.push(Home::Kv { group, keys: empty()?, values: empty()?, key_bytes, value_bytes });
                }
                StateDecl::Recurrent { floats } => {
                    all_slot_bytes += slot_bytes(floats);
                    let buffer = gpu.buffer("recurrent", 16)?;
                    homes.push(Home::Recurrent { buffer, slot_bytes: slot_bytes(floats) as u64 });
                }
                StateDecl::Elsewhere => homes.push(Home::Elsewhere),
            }
        }
        let largest = homes.iter().map(|home| match home {
            Home::Kv { key_bytes, value_bytes, .. } => *key_bytes.max(value_bytes),
            Home::Recurrent { slot_bytes, .. } => *slot_bytes,
            Home::Elsewhere => 0,
        });
        let scratch = gpu.buffer("state copy", largest.max().unwrap_or(0))?;
        Ok(Self {
            scratch,
            kv,
            homes,
            block_capacity: vec![0; groups.len()],
            groups,
            slot_capacity: 0,
            slots: 0,
            free_slots: Vec::new(),
            slot_bytes: all_slot_bytes,
            limits,
            used_bytes: 0,
            sequences: Vec::new(),
            snapshots: Vec::new(),
            pending: Vec::new(),
        })
    }

    /// Storage type of keys and values.
    pub(crate) fn kv(&self) -> KvDtype {
        self.kv
    }

    /// Blocks of the longest sequence.
    pub(crate) fn max_blocks(&self) -> usize {
        self.limits.max_positions.div_ceil(BLOCK)
    }

    /// First position that a query at `position` or later can still see in a group of layers.
    pub(crate) fn first_visible(&self, group: usize, position: usize) -> usize {
        self.groups[group].first_visible(position)
    }

    /// Number of groups of layers.
    pub(crate) fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// Group and buffers `(keys, values)` of an attention layer. Keys are `[block, kv_head, 32, key_dim]`.
    pub(crate) fn cache(&self, state: StateId) -> Result<(usize, &wgpu::Buffer, &wgpu::Buffer), GpuError> {
        match self.homes.get(state.0) {
            Some(Home::Kv { group, keys, values, .. }) => Ok((*group, keys, values)),
            _ => Err(ModelError::UnknownHandle { kind: "attention state", id: state.0 }.into()),
        }
    }

    /// Buffer of a recurrent layer and the floats of a slot in it.
    pub(crate) fn recurrent(&self, state: StateId) -> Result<(&wgpu::Buffer, usize), GpuError> {
        match self.homes.get(state.0) {
            Some(Home::Recurrent { buffer, slot_bytes }) => Ok((buffer, *slot_bytes as usize / 4)),
            _ => Err(ModelError::UnknownHandle { kind: "recurrent state", id: state.0 }.into()),
        }
    }

    /// Slot of a sequence in the recurrent buffers.
    pub(crate) fn slot(&self, id: SequenceId) -> Result<u32, ModelError> {
        Ok(self.table(id)?.slot.unwrap_or(0))
    }

    /// Blocks of a sequence in a group.
    pub(crate) fn blocks(&self, id: SequenceId, group: usize) -> Result<&[u32], ModelError> {
        Ok(&self.table(id)?.blocks[group])
    }

    fn table(&self, id: SequenceId) -> Result<&Table, ModelError> {
        let table = self.sequences.get(id.index()).and_then(Option::as_ref);
        table.ok_or(ModelError::UnknownHandle { kind: "sequence", id: id.index() })
    }

    fn table_mut(&mut self, id: SequenceId) -> Result<&mut Table, ModelError> {
        let table = self.sequences.get_mut(id.index()).and_then(Option::as_mut);
        table.ok_or(ModelError::UnknownHandle { kind: "sequence", id: id.index() })
    }

    fn snapshot_table(&self, id: SnapshotId) -> Result<&Table, ModelError> {
        let table = self.snapshots.get(id.index()).and_then(Option::as_ref);
        table.ok_or(ModelError::UnknownHandle { kind: "snapshot", id: id.index() })
    }

    fn check_budget(&self, bytes: usize) -> Result<(), ModelError> {
        let (used, limit) = (self.used_bytes, self.limits.max_bytes);
        if used.saturating_add(bytes) > limit {
            return Err(ModelError::StateFull { wanted: bytes, used, limit });
        }
        Ok(())
    }

    fn take_block(&mut self, group: usize) -> Result<u32, ModelError> {
        self.check_budget(self.groups[group].block_bytes)?;
        let group = &mut self.groups[group];
        self.used_bytes += group.block_bytes;
        let block = group.free.pop().unwrap_or_else(|| {
            group.holders.push(0);
            group.holders.len() as u32 - 1
        });
        group.holders[block as usize] = 1;
        Ok(block)
    }

    fn drop_block(&mut self, group: usize, block: u32) {
        if block == NO_BLOCK {
            return;
        }
        let group = &mut self.groups[group];
        let holders = &mut group.holders[block as usize];
        *holders -= 1;
        if *holders == 0 {
            group.free.push(block);
            self.used_bytes -= group.block_bytes;
        }
    }

    fn take_slot(&mut self) -> Result<Option<u32>, ModelError> {
        if self.slot_bytes == 0 {
            return Ok(None);
        }
        self.check_budget(self.slot_bytes)?;
        self.used_bytes += self.slot_bytes;
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        });
        Ok(Some(slot))
    }

    fn free_table(&mut self, table: Table) {
        for (group, blocks) in table.blocks.into_iter().enumerate() {
            blocks.into_iter().for_each(|block| self.drop_block(group, block));
        }
        if let Some(slot) = table.slot {
            self.free_slots.push(slot);
            self.used_bytes -= self.slot_bytes;
        }
    }

    fn insert(list: &mut Vec<Option<Table>>, table: Table) -> usize {
        let free = list.iter().position(Option::is_none).unwrap_or(list.len());
        list.resize(list.len().max(free + 1), None);
        list[free] = Some(table);
        free
    }

    /// A second holder of everything in `table`, with a slot of its own.
    fn share(&mut self, table: &Table) -> Result<Table, ModelError> {
        let slot = match table.slot {
            Some(from) => {
                let to = self.take_slot()?;
                self.pending.extend(to.map(|to| Pending::CopySlot { from, to }));
                to
            }
            None => None,
        };
        for (group, blocks) in self.groups.iter_mut().zip(&table.blocks) {
            blocks.iter().filter(|&&block| block != NO_BLOCK).for_each(|&block| group.holders[block as usize] += 1);
        }
        Ok(Table { len: table.len, blocks: table.blocks.clone(), slot })
    }

    fn lacking(table: &Table, group: usize, positions: usize) -> usize {
        positions.div_ceil(BLOCK).saturating_sub(table.blocks[group].len())
    }

    fn grow(&mut self, id: SequenceId, positions: usize) -> Result<(), ModelError> {
        let limit = self.limits.max_positions;
        if positions > limit {
            return Err(ModelError::ContextFull { wanted: positions, limit });
        }
        let table = self.table(id)?;
        let groups = self.groups.iter().enumerate();
        let bytes: usize = groups.map(|(i, group)| Self::lacking(table, i, positions) * group.block_bytes).sum();
        self.check_budget(bytes)?;
        for group in 0..self.groups.len() {
            for _ in 0..Self::lacking(self.table(id)?, group, positions) {
                let block = self.take_block(group)?;
                self.table_mut(id)?.blocks[group].push(block);
            }
        }
        Ok(())
    }

    /// Makes the blocks of positions `from..to` this sequence's own: shared ones are copied before the next step.
    pub(crate) fn own(&mut self, id: SequenceId, from: usize, to: usize) -> Result<(), ModelError> {
        for group in 0..self.groups.len() {
            for index in from / BLOCK..to.div_ceil(BLOCK) {
                let block = self.table(id)?.blocks[group].get(index).copied().unwrap_or(NO_BLOCK);
                if block == NO_BLOCK {
                    return Err(ModelError::Batch(format!("no state block at position {}", index * BLOCK)));
                }
                if self.groups[group].holders[block as usize] > 1 {
                    let own = self.take_block(group)?;
                    self.pending.push(Pending::CopyBlock { group, from: block, to: own });
                    self.table_mut(id)?.blocks[group][index] = own;
                    self.drop_block(group, block);
                }
            }
        }
        Ok(())
    }

    /// Drops what no query from position `position` on can see.
    fn forget(&mut self, id: SequenceId, group: usize, position: usize) -> Result<(), ModelError> {
        let gone = self.groups[group].first_visible(position) / BLOCK;
        let blocks = &mut self.table_mut(id)?.blocks[group];
        let gone = gone.min(blocks.len());
        let dropped: Vec<u32> = blocks[..gone]
            .iter_mut()
            .rev()
            .take_while(|b| **b != NO_BLOCK)
            .map(|b| std::mem::replace(b, NO_BLOCK))
            .collect();
        dropped.into_iter().for_each(|block| self.drop_block(group, block));
        Ok(())
    }

    /// Bytes that one sequence of `positions` makes the store take.
    pub(crate) fn bytes_of_sequence(layers: &[StateDecl], positions: usize, kv: KvDtype) -> u64 {
        let largest = layers.iter().map(|decl| match decl {
            StateDecl::Kv(layer) => layer_bytes(layer, kv).0.max(layer_bytes(layer, kv).1),
            StateDecl::Recurrent { floats } => slot_bytes(*floats),
            StateDecl::Elsewhere => 0,
        });
        let scratch = largest.max().unwrap_or(0);
        let each = layers.iter().map(|decl| match decl {
            StateDecl::Kv(layer) => {
                let (keys, values) = layer_bytes(layer, kv);
                (keys + values).saturating_mul(positions.div_ceil(BLOCK))
            }
            StateDecl::Recurrent { floats } => slot_bytes(*floats) * FEWEST_SLOTS,
            StateDecl::Elsewhere => 0,
        });
        each.fold(scratch, usize::saturating_add) as u64
    }

    /// Drops the free blocks and slots behind the last one in use, and what was to be done to them: a step that failed
    /// for lack of memory must not make the next one fail.
    fn trim(&mut self) {
        let needed = self.drop_useless_work();
        for (index, group) in self.groups.iter_mut().enumerate() {
            let held = group.holders.iter().rposition(|&holders| holders > 0).map_or(0, |last| last + 1);
            let source = |place: &Place| matches!(place, Place::Block(of, _) if *of == index);
            let sources = needed.iter().filter(|place| source(place)).map(Place::end);
            let used = sources.fold(held, usize::max);
            group.holders.truncate(used);
            group.free.retain(|&block| (block as usize) < used);
        }
        let sources = needed.iter().filter(|place| matches!(place, Place::Slot(_))).map(Place::end);
        let pinned = sources.max().unwrap_or(0);
        while self.slots as usize > pinned
            && let Some(at) = self.free_slots.iter().position(|&slot| slot + 1 == self.slots)
        {
            self.free_slots.swap_remove(at);
            self.slots -= 1;
        }
    }

    /// Drops pending work whose result nobody holds or copies any more, and returns what the rest reads.
    fn drop_useless_work(&mut self) -> HashSet<Place> {
        let mut needed = HashSet::new();
        let mut kept = Vec::new();
        for &pending in self.pending.iter().rev() {
            let (from, to) = pending.places();
            let held = match to {
                Place::Block(group, block) => self.groups[group].holders[block as usize] > 0,
                Place::Slot(slot) => !self.free_slots.contains(&slot),
            };
            // What is written here is not what an earlier one must leave.
            if held || needed.contains(&to) {
                needed.extend(from);
                kept.push(pending);
            }
        }
        kept.reverse();
        self.pending = kept;
        needed
    }

    /// Blocks that the buffers of a group should hold: twice as many as now when they do not suffice, but no more than
    /// a sequence of full length takes, unless more are in use.
    fn wanted_blocks(&self, group: usize) -> usize {
        let (needed, old) = (self.groups[group].holders.len(), self.block_capacity[group]);
        let whole = self.limits.max_positions.div_ceil(BLOCK);
        if needed <= old { old } else { needed.max((2 * old).max(FEWEST_BLOCKS).min(whole)) }
    }

    /// Buffers large enough for all blocks and slots in use. True when some were replaced, so that recorded
    /// dispatches point to the wrong ones. When it fails, the old ones stay in use.
    pub(crate) fn fit(&mut self, gpu: &Gpu) -> Result<bool, GpuError> {
        let lacks = |(group, capacity): (&Group, &usize)| group.holders.len() > *capacity;
        if self.groups.iter().zip(&self.block_capacity).any(lacks) || self.slots as usize > self.slot_capacity {
            self.trim();
        }
        let blocks: Vec<usize> = (0..self.groups.len()).map(|group| self.wanted_blocks(group)).collect();
        let (needed, old) = (self.slots as usize, self.slot_capacity);
        let slots = if needed <= old { old } else { needed.max(2 * old).max(FEWEST_SLOTS) };
        if blocks == self.block_capacity && slots == old {
            return Ok(false);
        }
        let mut encoder = gpu.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some("grow") });
        let mut grown = Vec::new();
        for home in &self.homes {
            let (from, to) = match home {
                Home::Kv { group, .. } => (self.block_capacity[*group], blocks[*group]),
                Home::Recurrent { .. } => (old, slots),
                Home::Elsewhere => (0, 0),
            };
            grown.push(home.grow(gpu, &mut encoder, from as u64, to as u64)?);
        }
        gpu.submit(encoder.finish())?;
        self.homes = grown;
        self.block_capacity = blocks;
        self.slot_capacity = slots;
        Ok(true)
    }

    /// Encodes the copies and clears asked for since the last step. They are asked for until
    /// [`DeviceState::finish_pending`].
    pub(crate) fn encode_pending(&self, encoder: &mut wgpu::CommandEncoder) {
        for &pending in &self.pending {
            for home in &self.homes {
                match (home, pending) {
                    (
                        Home::Kv { group, keys, values, key_bytes, value_bytes },
                        Pending::CopyBlock { group: of, from, to },
                    ) if *group == of => {
                        for (buffer, bytes) in [(keys, *key_bytes), (values, *value_bytes)] {
                            let at = |block: u32| u64::from(block) * bytes;
                            copy(encoder, &self.scratch, buffer, at(from), at(to), bytes);
                        }
                    }
                    (Home::Recurrent { buffer, slot_bytes }, Pending::CopySlot { from, to }) => {
                        let at = |slot: u32| u64::from(slot) * slot_bytes;
                        copy(encoder, &self.scratch, buffer, at(from), at(to), *slot_bytes);
                    }
                    (Home::Recurrent { buffer, slot_bytes }, Pending::ClearSlot(slot)) => {
                        encoder.clear_buffer(buffer, u64::from(slot) * slot_bytes, Some(*slot_bytes));
                    }
                    _ => {}
                }
            }
        }
    }

    /// What was encoded has been submitted.
    pub(crate) fn finish_pending(&mut self) {
        self.pending.clear();
    }
}

/// Copies inside one buffer by way of `scratch`: the interface forbids one buffer on both sides of a copy.
fn copy(
    encoder: &mut wgpu::CommandEncoder,
    scratch: &wgpu::Buffer,
    buffer: &wgpu::Buffer,
    from: u64,
    to: u64,
    bytes: u64,
) {
    if bytes > 0 {
        encoder.copy_buffer_to_buffer(buffer, from, scratch, 0, bytes);
        encoder.copy_buffer_to_buffer(scratch, 0, buffer, to, bytes);
    }
}

impl Home {
    /// The same with buffers for `to` blocks or slots, into which the first `from` are copied.
    fn grow(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder, from: u64, to: u64) -> Result<Self, GpuError> {
        let mut larger = |buffer: &wgpu::Buffer, bytes: u64| {
            if from == to {
                return Ok(buffer.clone());
            }
            let larger = gpu.buffer("state", to * bytes)?;
            if from * bytes > 0 {
                encoder.copy_buffer_to_buffer(buffer, 0, &larger, 0, from * bytes);
            }
            Ok::<_, GpuError>(larger)
        };
        Ok(match self {
            Self::Kv { group, keys, values, key_bytes, value_bytes } => Self::Kv {
                group: *group,
                keys: larger(keys, *key_bytes)?,
                values: larger(values, *value_bytes)?,
                key_bytes: *key_bytes,
                value_bytes: *value_bytes,
            },
            Self::Elsewhere => Self::Elsewhere,
            Self::Recurrent { buffer, slot_bytes } => {
                Self::Recurrent { buffer: larger(buffer, *slot_bytes)?, slot_bytes: *slot_bytes }
            }
        })
    }
}

impl SequenceState for DeviceState {
    fn open(&mut self) -> Result<SequenceId, ModelError> {
        let slot = self.take_slot()?;
        self.pending.extend(slot.map(Pending::ClearSlot));
        let table = Table { len: 0, blocks: vec![Vec::new(); self.groups.len()], slot };
        Ok(SequenceId::from_index(Self::insert(&mut self.sequences, table)))
    }

    fn close(&mut self, id: SequenceId) -> Result<(), ModelError> {
        let table = std::mem::take(self.table_mut(id)?);
        self.sequences[id.index()] = None;
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
            blocks.get(first..len.div_ceil(BLOCK)).is_some_and(|blocks| blocks.iter().all(|&b| b != NO_BLOCK))
        });
        Ok(len < table.len && table.slot.is_none() && kept)
    }

    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), ModelError> {
        if !self.can_truncate(id, len)? {
            let from = self.table(id)?.len;
            return Err(ModelError::CannotRewind { from, to: len });
        }
        if len == 0
            && let Some(slot) = self.table(id)?.slot
        {
            self.pending.push(Pending::ClearSlot(slot));
        }
        self.table_mut(id)?.len = len;
        for group in 0..self.groups.len() {
            let blocks = &mut self.table_mut(id)?.blocks[group];
            let dropped = blocks.split_off(len.div_ceil(BLOCK).min(blocks.len()));
            dropped.into_iter().for_each(|block| self.drop_block(group, block));
        }
        Ok(())
    }

    fn snapshot(&mut self, id: SequenceId) -> Result<SnapshotId, ModelError> {
        let table = self.table(id)?.clone();
        let copy = self.share(&table)?;
        Ok(SnapshotId::from_index(Self::insert(&mut self.snapshots, copy)))
    }

    fn restore(&mut self, id: SequenceId, snapshot: SnapshotId) -> Result<(), ModelError> {
        let saved = self.snapshot_table(snapshot)?.clone();
        let slot = self.table(id)?.slot;
        // The sequence keeps its slot, whose content changes, so that a full store can still go back.
        let copy = self.share(&Table { slot: None, ..saved.clone() })?;
        if let (Some(from), Some(to)) = (saved.slot, slot) {
            self.pending.push(Pending::CopySlot { from, to });
        }
        let old = std::mem::replace(self.table_mut(id)?, Table { slot, ..copy });
        self.free_table(Table { slot: None, ..old });
        Ok(())
    }

    fn release(&mut self, snapshot: SnapshotId) -> Result<(), ModelError> {
        self.snapshot_table(snapshot)?;
        let table = self.snapshots[snapshot.index()].take().unwrap_or_default();
        self.free_table(table);
        Ok(())
    }
}
