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
    /// Length that the sequence is already known to reach, 0 when it is not: a prompt fed in chunks has the length
    /// of the whole prompt here. Longrope chooses its factors by it, so that chunks do not change the result.
    pub known_len: usize,
}

impl Span {
    /// Spans that cover `rows` in order: a new one wherever the sequence changes or a position is left out.
    pub fn around(rows: &[Row]) -> Vec<Self> {
        let mut spans: Vec<Self> = Vec::new();
        for row in rows {
            match spans.last_mut() {
                Some(span) if span.sequence == row.sequence && span.start + span.len == row.position => span.len += 1,
                _ => {
                    let Row { sequence, position, known_len, .. } = *row;
                    spans.push(Self { sequence, start: position, len: 1, known_len });
                }
            }
        }
        spans
    }
}

/// One token of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// Index in the batch.
    pub index: usize,
    /// Its sequence.
    pub sequence: SequenceId,
    /// Its position there.
    pub position: usize,
    /// Length of the sequence as far as it is known: at least `position + 1`.
    pub known_len: usize,
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
        // What can fail comes first: a sequence that has grown cannot always shrink again.
        self.spans.iter().try_for_each(|span| states.reserve(span.sequence, span.len))?;
        self.spans.iter().try_for_each(|span| states.append(span.sequence, span.len))
    }

    /// Undoes [`Batch::append_to`] after a step that failed half-way. A sequence that cannot go back is emptied.
    pub fn retract_from(&self, states: &mut dyn SequenceState) -> Result<(), ModelError> {
        self.spans.iter().try_for_each(|span| {
            let len = if states.can_truncate(span.sequence, span.start)? { span.start } else { 0 };
            states.truncate(span.sequence, len)
        })
    }

    /// Every token, in order.
    pub fn rows(&self) -> impl Iterator<Item = Row> + '_ {
        let each = self.spans.iter().flat_map(|span| (span.start..span.start + span.len).map(move |p| (span, p)));
        each.enumerate().map(|(index, (span, position))| Row {
            index,
            sequence: span.sequence,
            position,
            known_len: span.known_len.max(position + 1),
        })
    }

    /// Index of the first token of every span.
    pub fn first_rows(&self) -> impl Iterator<Item = (usize, &Span)> + '_ {
        self.spans.iter().scan(0, |next, span| {
            let first = *next;
            *next += span.len;
            Some((first, span))
        })
    }
}
