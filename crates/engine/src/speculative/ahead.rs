//! The rows that were computed ahead, and the way back from them.

use std::time::{Duration, Instant};

use cortiq_model::{ModelError, SnapshotId, StateDecl, TopRows, Wanted};

use super::monitor::Monitor;
use super::{DraftKind, MAX_DRAFT_TOKENS, Speculation, ngram};
use crate::{Engine, EngineError, LogitRows, Prediction, Predictions, Sequence};

/// The latest step of a generation: predictions after its last known token and after each guess.
pub(crate) struct Ahead {
    guessing: Option<Guessing>,
    /// Of `guesses + 1` rows.
    predictions: Predictions,
    /// Tokens of the step: the known one, then the guesses.
    tokens: Vec<u32>,
    /// Tokens that the step took for granted.
    guesses: Vec<u32>,
    /// Guesses that turned out right; the prediction in use.
    right: usize,
    /// State before the step, where a sequence cannot go back otherwise.
    snapshot: Option<SnapshotId>,
    /// Row of the executor's last step that row 0 is.
    first_row: usize,
    /// Guesses that were verified.
    pub(crate) drafted: usize,
    /// Those that were chosen.
    pub(crate) accepted: usize,
}

/// How guesses are made.
struct Guessing {
    kind: DraftKind,
    count: usize,
    monitor: Monitor,
    /// Time that the present round took so far.
    time: Duration,
    /// Prompt and answer.
    history: Vec<u32>,
    /// The best token that the head predicts.
    best: TopRows,
}

impl Ahead {
    /// What is known of the next token.
    pub(crate) fn prediction(&mut self) -> Prediction<'_> {
        self.predictions.row(self.right)
    }

    /// Takes notice of the token that was chosen from [`Ahead::prediction`].
    pub(crate) fn choose(&mut self, id: u32) {
        self.accepted += usize::from(self.guessed(id));
        if let Some(guessing) = &mut self.guessing {
            guessing.history.push(id);
        }
    }

    /// Whether `id` is the next guess.
    fn guessed(&self, id: u32) -> bool {
        self.guesses.get(self.right) == Some(&id)
    }

    /// Guesses of the step that are not known to be right: the sequence holds them too.
    fn open(&self) -> usize {
        self.guesses.len() - self.right
    }

    /// Who guesses; none without speculation.
    pub(crate) fn kind(&self) -> Option<DraftKind> {
        self.guessing.as_ref().map(|guessing| guessing.kind)
    }

    fn has_head(&self) -> bool {
        self.kind() == Some(DraftKind::Mtp)
    }
}

impl Engine {
    /// Whether speculation goes on where it is measured to be slower than plain steps; it does not at first. For
    /// measurements and tests, which want as many guesses on every machine.
    pub fn set_always_speculate(&mut self, always: bool) {
        self.always_speculate = always;
    }

    /// Prepares a generation whose prompt is not fed yet and whose sampler wants `wanted`.
    pub(crate) fn look_ahead(
        &self,
        prompt: &[u32],
        speculation: Speculation,
        wanted: Wanted,
    ) -> Result<Ahead, EngineError> {
        let guessing = match speculation.resolve(self.has_prediction_head()) {
            Some((_, count)) if !(1..=MAX_DRAFT_TOKENS).contains(&count) => {
                return Err(EngineError::DraftTokens(count));
            }
            Some((DraftKind::Mtp, _)) if !self.has_prediction_head() => {
                return Err(ModelError::NoPredictionHead.into());
            }
            Some((kind, count)) => {
                let (monitor, history) = (Monitor::new(!self.always_speculate), prompt.to_vec());
                Some(Guessing { kind, count, monitor, time: Duration::ZERO, history, best: TopRows::default() })
            }
            None => None,
        };
        Ok(Ahead {
            guessing,
            predictions: Predictions::new(wanted, self.vocab_size()),
            tokens: Vec::new(),
            guesses: Vec::new(),
            right: 0,
            snapshot: None,
            first_row: 0,
            drafted: 0,
            accepted: 0,
        })
    }

    /// [`Engine::feed`] for a generation.
    pub(crate) fn feed_prompt(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        kept: usize,
        ahead: &mut Ahead,
    ) -> Result<(), EngineError> {
        let with_head = ahead.has_head();
        self.feed(sequence, prompt, kept, with_head, &mut ahead.predictions)?;
        ahead.first_row = (prompt.len() - kept - 1) % self.prefill_chunk();
        Ok(())
    }

    /// Length of `sequence` without open guesses.
    pub(crate) fn settled_len(&self, sequence: &Sequence, ahead: &Ahead) -> usize {
        sequence.tokens.len() - ahead.open()
    }

    /// Moves on to the prediction after `id`, the token that was chosen; `left` tokens may still be produced, at least 1.
    pub(crate) fn advance(
        &mut self,
        sequence: &mut Sequence,
        ahead: &mut Ahead,
        id: u32,
        left: usize,
    ) -> Result<(), EngineError> {
        if ahead.guessed(id) {
            ahead.right += 1;
            return Ok(());
        }
        self.settle(sequence, ahead)?;
        let begin = Instant::now();
        let room = self.context().saturating_sub(sequence.tokens.len() + 1);
        let guesses = self.guess(sequence, ahead, id, room.min(left - 1))?;
        let step = Instant::now();
        self.verify(sequence, ahead, id, guesses)?;
        if let Some(guessing) = &mut ahead.guessing {
            guessing.time = begin.elapsed();
            if ahead.guesses.is_empty() {
                // Without what the search for a guess took.
                guessing.monitor.plain(step.elapsed());
            }
        }
        Ok(())
    }

    /// Guesses, at most `most`, of what follows `id`, the next token of a settled sequence.
    fn guess(&mut self, sequence: &Sequence, ahead: &mut Ahead, id: u32, most: usize) -> Result<Vec<u32>, EngineError> {
        let Some(guessing) = &mut ahead.guessing else { return Ok(Vec::new()) };
        let count = if guessing.monitor.may_guess() { guessing.count.min(most) } else { 0 };
        match guessing.kind {
            DraftKind::NGram => Ok(ngram::propose(&guessing.history, count)),
            DraftKind::Mtp => {
                let next: Vec<u32> = ahead.guesses.iter().copied().chain([id]).collect();
                self.head_guesses(sequence, ahead.first_row, &next, count, &mut guessing.best)
            }
        }
    }

    /// Computes `id` and `guesses` in one step.
    fn verify(
        &mut self,
        sequence: &mut Sequence,
        ahead: &mut Ahead,
        id: u32,
        guesses: Vec<u32>,
    ) -> Result<(), EngineError> {
        let recurrent = |state: &StateDecl| matches!(state, StateDecl::Recurrent { .. });
        if !guesses.is_empty() && self.executor.program().states.iter().any(recurrent) {
            ahead.snapshot = Some(self.executor.states().snapshot(sequence.id)?);
        }
        ahead.tokens.clear();
        ahead.tokens.push(id);
        ahead.tokens.extend_from_slice(&guesses);
        self.predict(sequence, &ahead.tokens, LogitRows::All, &mut ahead.predictions)?;
        (ahead.right, ahead.first_row) = (0, 0);
        ahead.drafted += guesses.len();
        ahead.guesses = guesses;
        Ok(())
    }

    /// Takes open guesses back and drops the snapshot. Afterwards the sequence holds what was chosen, and rows
    /// `first_row..` of the executor's last step are those of row 0 and of the right guesses.
    pub(crate) fn settle(&mut self, sequence: &mut Sequence, ahead: &mut Ahead) -> Result<(), EngineError> {
        let begin = Instant::now();
        let snapshot = ahead.snapshot.take();
        let gone_back = self.take_back(sequence, ahead, snapshot);
        let released = snapshot.map_or(Ok(()), |snapshot| self.executor.states().release(snapshot));
        if let Some(guessing) = &mut ahead.guessing
            && !ahead.guesses.is_empty()
        {
            guessing.monitor.guessed(guessing.time + begin.elapsed(), ahead.right + 1);
        }
        ahead.guesses.truncate(ahead.right);
        gone_back?;
        Ok(released?)
    }

    fn take_back(
        &mut self,
        sequence: &mut Sequence,
        ahead: &Ahead,
        snapshot: Option<SnapshotId>,
    ) -> Result<(), EngineError> {
        if ahead.open() == 0 {
            return Ok(());
        }
        let len = self.settled_len(sequence, ahead);
        let Some(snapshot) = snapshot else {
            self.executor.states().truncate(sequence.id, len)?;
            sequence.tokens.truncate(len);
            return Ok(());
        };
        let before = sequence.tokens.len().saturating_sub(ahead.guesses.len() + 1);
        self.executor.states().restore(sequence.id, snapshot)?;
        let again = sequence.tokens.get(before..len).unwrap_or_default().to_vec();
        sequence.tokens.truncate(before);
        self.extend(sequence, &again, LogitRows::None)?;
        Ok(())
    }

    /// Tells the head the last token of a finished generation, so that it can guess in a later one that goes on.
    pub(crate) fn finish_head(&mut self, ahead: &Ahead, last: Option<u32>) -> Result<(), EngineError> {
        match last {
            Some(id) if ahead.has_head() => {
                let next: Vec<u32> = ahead.guesses.iter().copied().chain([id]).collect();
                self.teach_head(ahead.first_row, &next)
            }
            _ => Ok(()),
        }
    }
}
