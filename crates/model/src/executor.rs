//! The contract that every executor fulfils.

use crate::{Batch, ModelError, Program, SequenceState};

/// Runs a [`Program`] over ragged batches, on one kind of hardware.
pub trait Executor: Send {
    /// Short name for messages, `reference` or `cpu`.
    fn name(&self) -> &'static str;

    /// The program it runs.
    fn program(&self) -> &Program;

    /// State of all sequences, in this executor's memory. The engine opens, forks and closes sequences here.
    fn states(&mut self) -> &mut dyn SequenceState;

    /// Computes one step and appends its tokens to their sequences.
    ///
    /// Returns the logits of `batch.logit_rows`, row-major `[logit_rows.len(), vocab_size]`; the slice lives
    /// until the next step. When it fails, every sequence keeps the length it had before.
    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError>;
}
