//! The ragged batch: some tokens of some sequences, each with its position.

use crate::{ModelError, SequenceId, SequenceState};

/// A run of consecutive new tokens of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The sequence that grows.
    pub sequence: SequenceId,
    /// Position of the first token; equals the length of the sequence before the step.
    pub start: usize,
    /// Number of tokens, at least 1.
    pub len: usize,
}

/// Input of one step: `tokens` is the concatenation of the spans. Decoding one token is the batch of one.
#[derive(Clone, Copy, Debug)]
pub struct Batch<'a> {
    /// Token ids of all spans, in order.
    pub tokens: &'a [u32],
    /// Spans that tile `tokens`; a sequence occurs at most once.
    pub spans: &'a [Span],
    /// Rows of `tokens` whose logits are wanted, strictly ascending.
    pub logit_rows: &'a [usize],
}

impl Batch<'_> {
    /// Checks everything that an executor relies on, before any state changes.
    pub fn validate(&self, vocab_size: usize, states: &dyn SequenceState) -> Result<(), ModelError> {
        if self.tokens.is_empty() {
            return Err(ModelError::Batch("it has no tokens".to_owned()));
        }
        if let Some(&id) = self.tokens.iter().find(|&&id| id as usize >= vocab_size) {
            return Err(ModelError::TokenOutOfRange { id, vocab_size });
        }
        let mut total = 0usize;
        for (i, span) in self.spans.iter().enumerate() {
            if span.len == 0 {
                return Err(ModelError::Batch(format!("span {i} is empty")));
            }
            if self.spans[..i].iter().any(|other| other.sequence == span.sequence) {
                return Err(ModelError::Batch(format!("span {i} repeats a sequence")));
            }
            let len = states.len(span.sequence)?;
            if len != span.start {
                return Err(ModelError::Batch(format!(
                    "span {i} starts at {}, its sequence has {len} positions",
                    span.start
                )));
            }
            total = total.checked_add(span.len).ok_or_else(|| ModelError::Batch("its spans overflow".to_owned()))?;
        }
        if total != self.tokens.len() {
            return Err(ModelError::Batch(format!("{} tokens, but its spans cover {total}", self.tokens.len())));
        }
        let ascending = self.logit_rows.windows(2).all(|w| w[0] < w[1]);
        if !ascending || self.logit_rows.last().is_some_and(|&row| row >= total) {
            return Err(ModelError::Batch("its logit rows are not ascending rows of the batch".to_owned()));
        }
        Ok(())
    }

    /// Makes room for all spans in `states`; on failure no sequence has grown.
    pub fn append_to(&self, states: &mut dyn SequenceState) -> Result<(), ModelError> {
        for (i, span) in self.spans.iter().enumerate() {
            if let Err(error) = states.append(span.sequence, span.len) {
                for done in &self.spans[..i] {
                    states.truncate(done.sequence, done.start)?;
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Undoes [`Batch::append_to`] after a step that failed.
    pub fn retract_from(&self, states: &mut dyn SequenceState) -> Result<(), ModelError> {
        self.spans.iter().try_for_each(|span| states.truncate(span.sequence, span.start))
    }

    /// `(row, sequence, position)` of every token, in order.
    pub fn rows(&self) -> impl Iterator<Item = (usize, SequenceId, usize)> + '_ {
        self.spans
            .iter()
            .flat_map(|span| (0..span.len).map(move |i| (span.sequence, span.start + i)))
            .enumerate()
            .map(|(row, (sequence, position))| (row, sequence, position))
    }
}
