//! State of sequences: what a model remembers of the tokens it has seen.

mod blocks;
mod dtype;
mod host;
mod rows;
mod tail;

pub use dtype::KvDtype;
pub use host::{HostState, KvBlock};
pub use rows::{KvRows, KvValues};

use crate::ModelError;

/// Handle of a live sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub(crate) usize);

impl SequenceId {
    /// The handle that an owner of state gives to number `index` of its sequences.
    pub fn from_index(index: usize) -> Self {
        Self(index)
    }

    /// The number that the owner of the state gave.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Handle of a snapshot of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId(pub(crate) usize);

impl SnapshotId {
    /// The handle that an owner of state gives to number `index` of its snapshots.
    pub fn from_index(index: usize) -> Self {
        Self(index)
    }

    /// The number that the owner of the state gave.
    pub fn index(self) -> usize {
        self.0
    }
}

/// What one layer remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDecl {
    /// A row per position.
    Kv(KvLayer),
    /// A fixed number of floats, zero in an empty sequence: rings of convolutions, delta-net matrices.
    Recurrent {
        /// Size of the slot.
        floats: usize,
    },
    /// Nothing: another executor runs the layer and keeps its state.
    Elsewhere,
}

/// Geometry of one attention layer's cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvLayer {
    /// Key/value heads.
    pub kv_heads: usize,
    /// Floats of a key.
    pub key_dim: usize,
    /// Floats of a value; 0 when values are a part of the keys (latent attention).
    pub value_dim: usize,
    /// Only so many of the latest positions are ever read.
    pub window: Option<usize>,
}

/// Limits on sequence state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateLimits {
    /// Longest sequence, in positions.
    pub max_positions: usize,
    /// Bytes that all sequences and snapshots may take together.
    pub max_bytes: usize,
}

/// Owner of the state of all sequences of one executor: paged for attention, fixed-size for recurrent layers.
///
/// Recurrent state cannot be rolled back and windowed layers forget, so callers that may go back ask
/// [`SequenceState::can_truncate`] or take a snapshot first.
pub trait SequenceState {
    /// Starts an empty sequence. Its number is the lowest that is free, so that owners that open and close the same
    /// sequences in the same order give them the same handles.
    fn open(&mut self) -> Result<SequenceId, ModelError>;
    /// Ends a sequence and frees what only it used.
    fn close(&mut self, id: SequenceId) -> Result<(), ModelError>;
    /// Number of positions stored.
    fn len(&self, id: SequenceId) -> Result<usize, ModelError>;
    /// Grows a sequence by `count` positions, whose content the running step writes.
    fn append(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError>;
    /// Makes room for `count` positions beyond the end without growing: drafts write there.
    fn reserve(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError>;
    /// Whether [`SequenceState::truncate`] to `len` would succeed: always to 0 and to the present length.
    fn can_truncate(&self, id: SequenceId, len: usize) -> Result<bool, ModelError>;
    /// Forgets all positions from `len` on. An error, without a change, when that is not possible.
    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), ModelError>;
    /// Keeps the present state of a sequence, under the lowest free number. Attention blocks are shared until written; recurrent slots are copied.
    fn snapshot(&mut self, id: SequenceId) -> Result<SnapshotId, ModelError>;
    /// Gives a sequence (the same or another) the state of a snapshot, which stays valid.
    fn restore(&mut self, id: SequenceId, snapshot: SnapshotId) -> Result<(), ModelError>;
    /// Drops a snapshot.
    fn release(&mut self, snapshot: SnapshotId) -> Result<(), ModelError>;
}
