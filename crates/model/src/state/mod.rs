//! State of sequences: what a model remembers of the tokens it has seen.

mod paged;

pub use paged::{KvBlock, KvLayer, PagedKv};

use crate::ModelError;

/// Handle of a live sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SequenceId(pub(crate) usize);

/// Handle of a snapshot of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotId(pub(crate) usize);

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
/// Recurrent state cannot be rolled back, so callers that may go back take a snapshot first; a pure attention
/// model can also truncate.
pub trait SequenceState {
    /// Starts an empty sequence.
    fn open(&mut self) -> Result<SequenceId, ModelError>;
    /// Ends a sequence and frees what only it used.
    fn close(&mut self, id: SequenceId) -> Result<(), ModelError>;
    /// Number of positions stored.
    fn len(&self, id: SequenceId) -> Result<usize, ModelError>;
    /// Grows a sequence by `count` positions, whose content the running step writes.
    fn append(&mut self, id: SequenceId, count: usize) -> Result<(), ModelError>;
    /// Forgets all positions from `len` on. Longer than the sequence is an error.
    fn truncate(&mut self, id: SequenceId, len: usize) -> Result<(), ModelError>;
    /// Keeps the present state of a sequence. Cheap for attention: blocks are shared until written.
    fn snapshot(&mut self, id: SequenceId) -> Result<SnapshotId, ModelError>;
    /// Gives a sequence (the same or another) the state of a snapshot, which stays valid.
    fn restore(&mut self, id: SequenceId, snapshot: SnapshotId) -> Result<(), ModelError>;
    /// Drops a snapshot.
    fn release(&mut self, snapshot: SnapshotId) -> Result<(), ModelError>;
}
