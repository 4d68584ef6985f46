//! The contract that every executor fulfils.

use crate::{Batch, ModelError, Program, Row, SequenceState, TopRows};

/// Whose hidden states a draft continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// Rows of the last [`Executor::step`].
    Step,
    /// Rows of the last [`Executor::draft`], one position further on.
    Draft,
}

/// Input of the prediction head: for some rows of the source, the token that follows each.
#[derive(Clone, Copy, Debug)]
pub struct DraftInput<'a> {
    /// Whose hidden states.
    pub source: DraftSource,
    /// Rows of the source, strictly ascending.
    pub rows: &'a [usize],
    /// The token after each of them.
    pub next: &'a [u32],
    /// Which of `rows` (as indexes into it) need logits, strictly ascending.
    pub logit_rows: &'a [usize],
}

impl DraftInput<'_> {
    /// Sequence and position of each row to draft: that of the source's row, one further on for a draft of a draft.
    pub fn place(&self, source: &[Row]) -> Result<Vec<Row>, ModelError> {
        let step = match self.source {
            DraftSource::Step => 0,
            DraftSource::Draft => 1,
        };
        let ascending = self.rows.windows(2).all(|w| w[0] < w[1]) && self.logit_rows.windows(2).all(|w| w[0] < w[1]);
        let inside = self.logit_rows.last().is_none_or(|&row| row < self.rows.len());
        if self.rows.is_empty() || self.rows.len() != self.next.len() || !ascending || !inside {
            return Err(ModelError::Batch("the rows of a draft contradict each other".to_owned()));
        }
        let place = |(index, row): (usize, &usize)| {
            let found = source.get(*row).ok_or_else(|| ModelError::Batch(format!("no row {row} to draft from")))?;
            Ok(Row { index, position: found.position + step, known_len: found.known_len + step, ..*found })
        };
        self.rows.iter().enumerate().map(place).collect()
    }

    /// Checks that every next token is in the vocabulary.
    pub fn check_tokens(&self, vocab_size: usize) -> Result<(), ModelError> {
        match self.next.iter().find(|&&id| id as usize >= vocab_size) {
            Some(&id) => Err(ModelError::TokenOutOfRange { id, vocab_size }),
            None => Ok(()),
        }
    }
}

/// Time that a kind of kernel took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelTime {
    /// Name of the kernel.
    pub name: &'static str,
    /// How often it ran.
    pub calls: usize,
    /// Seconds on the device, all calls together.
    pub seconds: f64,
}

/// Runs a [`Program`] over ragged batches, on one kind of hardware.
pub trait Executor: Send {
    /// Short name for messages, `reference` or `cpu`.
    fn name(&self) -> &'static str;

    /// The program it runs.
    fn program(&self) -> &Program;

    /// State of all sequences, in this executor's memory. The engine opens, forks and closes sequences here.
    fn states(&mut self) -> &mut dyn SequenceState;

    /// The state of [`Executor::states`], to look at.
    fn state(&self) -> &dyn SequenceState;

    /// Computes one step and appends its tokens to their sequences.
    ///
    /// Returns the logits of `batch.logit_rows`, row-major `[logit_rows.len(), vocab_size]`; the slice lives
    /// until the next step. When it fails, every sequence has the length it had before, or is empty if its state
    /// cannot go back (recurrent layers).
    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError>;

    /// Runs the prediction head ([`Program::draft`]) on hidden states of the last step or draft and returns logits of
    /// the token after `next`, `[logit_rows.len(), vocab_size]`. The head's own attention state is written at the
    /// position of each row; a draft of a draft writes past the end of its sequence, which a later step overwrites.
    fn draft(&mut self, input: &DraftInput<'_>) -> Result<&[f32], ModelError>;

    /// The logits that the last successful [`Executor::step`] or [`Executor::draft`] returned.
    fn logits(&self) -> &[f32];

    /// [`Executor::step`] that gives the `count` (at least 1) best tokens of each of `batch.logit_rows` instead of all
    /// logits, which an executor with memory of its own need not bring back then: [`Executor::logits`] may be empty
    /// afterwards. What was in `out` is lost.
    fn step_top(&mut self, batch: &Batch<'_>, count: usize, out: &mut TopRows) -> Result<(), ModelError> {
        let vocab_size = self.program().vocab_size;
        out.fill(count, vocab_size, self.step(batch)?);
        Ok(())
    }

    /// [`Executor::draft`] that gives the `count` best tokens of each row, as [`Executor::step_top`] does.
    fn draft_top(&mut self, input: &DraftInput<'_>, count: usize, out: &mut TopRows) -> Result<(), ModelError> {
        let vocab_size = self.program().vocab_size;
        out.fill(count, vocab_size, self.draft(input)?);
        Ok(())
    }

    /// Tokens of a prompt that one step should compute.
    fn prefill_chunk(&self) -> usize {
        256
    }

    /// Starts to time every kernel. Steps are slower until [`Executor::end_profile`].
    fn start_profile(&mut self) -> Result<(), ModelError> {
        Err(ModelError::Executor(format!("the {} executor does not time its kernels", self.name())))
    }

    /// The times since [`Executor::start_profile`], longest first.
    fn end_profile(&mut self) -> Vec<KernelTime> {
        Vec::new()
    }
}
