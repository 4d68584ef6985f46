//! Running a step in parts, so that two executors can share one program.

use std::ops::Range;

use crate::{Batch, Executor, ModelError, Slot, TopRows};

/// Some consecutive operations of a step, and what crosses their borders.
#[derive(Clone, Copy, Debug)]
pub struct Part<'a> {
    /// First operation, an index into [`crate::Program::ops`].
    pub first: usize,
    /// Behind the last one.
    pub end: usize,
    /// Slots that come from another executor.
    pub inputs: &'a [Slot],
    /// Slots that go to another executor.
    pub outputs: &'a [Slot],
}

impl Part<'_> {
    /// Its operations.
    pub fn range(&self) -> Range<usize> {
        self.first..self.end
    }
}

/// An executor that can run a part of a step: what several of them are composed from.
///
/// The caller does what [`Executor::step`] does around the operations: it validates the batch, appends its tokens to
/// the states, and takes them back when a part fails.
pub trait PartExecutor: Executor {
    /// Computes `part`. `slots` holds rows by slot, `[rows, width]` each: the part's inputs are read from there, its
    /// outputs written to it. Logits of a part that ends with the head are in [`Executor::logits`], and its hidden
    /// states can be drafted from. Slots keep their rows between the parts of one step.
    fn run_part(&mut self, batch: &Batch<'_>, part: &Part<'_>, slots: &mut [Vec<f32>]) -> Result<(), ModelError>;

    /// [`PartExecutor::run_part`] of a part with the head, for the `count` best tokens of each row of logits, as
    /// [`Executor::step_top`] gives them.
    fn run_part_top(
        &mut self,
        batch: &Batch<'_>,
        part: &Part<'_>,
        slots: &mut [Vec<f32>],
        count: usize,
        out: &mut TopRows,
    ) -> Result<(), ModelError> {
        self.run_part(batch, part, slots)?;
        out.fill(count, self.program().vocab_size, self.logits());
        Ok(())
    }
}
