//! Guesses of the prediction head.
//!
//! The head has attention state of its own: a row per position, made from the model's hidden state there and the token
//! that follows. It is kept complete from the start of a prompt on. Positions that a sequence holds from a time
//! without speculation lack it; guesses are poorer there, and the text is the same.

use cortiq_model::{DraftInput, DraftSource, TopRows};

use crate::sampler::best_of;
use crate::{Engine, EngineError, Sequence};

impl Engine {
    /// Whether the model can guess tokens ahead itself.
    pub fn has_prediction_head(&self) -> bool {
        self.executor.program().draft.is_some()
    }

    /// Writes the head's state for rows `first..` of the last step, which `next` follow, one for each.
    pub(crate) fn teach_head(&mut self, first: usize, next: &[u32]) -> Result<(), EngineError> {
        if next.is_empty() {
            return Ok(());
        }
        let rows: Vec<usize> = (first..first + next.len()).collect();
        self.executor.draft(&DraftInput { source: DraftSource::Step, rows: &rows, next, logit_rows: &[] })?;
        Ok(())
    }

    /// [`Engine::teach_head`], and at most `count` guesses of what follows the last of `next`. What is in `best` is lost.
    pub(super) fn head_guesses(
        &mut self,
        sequence: &Sequence,
        first: usize,
        next: &[u32],
        count: usize,
        best: &mut TopRows,
    ) -> Result<Vec<u32>, EngineError> {
        let Some(last) = next.len().checked_sub(1).filter(|_| count > 0) else {
            self.teach_head(first, next)?;
            return Ok(Vec::new());
        };
        // Each guess from a guess writes one position further.
        self.executor.states().reserve(sequence.id, count - 1)?;
        let rows: Vec<usize> = (first..first + next.len()).collect();
        let input = DraftInput { source: DraftSource::Step, rows: &rows, next, logit_rows: &[last] };
        let mut guesses = Vec::with_capacity(count);
        // A row without a best token ends the guessing, nothing else.
        self.executor.draft_top(&input, 1, best)?;
        let mut guess = best_of(best.row(0)).ok();
        let mut row = last;
        while let Some(token) = guess {
            guesses.push(token);
            if guesses.len() == count {
                break;
            }
            let input = DraftInput { source: DraftSource::Draft, rows: &[row], next: &[token], logit_rows: &[0] };
            self.executor.draft_top(&input, 1, best)?;
            guess = best_of(best.row(0)).ok();
            row = 0;
        }
        Ok(guesses)
    }
}
