//! What a step tells about the tokens that follow its rows.

use cortiq_model::{Batch, Executor, ModelError, TopLogit, TopRows, Wanted};

/// What is known of the token after one row: as much as its sampler wants.
#[derive(Debug)]
pub enum Prediction<'a> {
    /// All logits, one per token of the vocabulary. The sampler changes them.
    Logits(&'a mut [f32]),
    /// The best tokens, sorted as in [`TopRows`].
    Top(&'a [TopLogit]),
}

/// Predictions of the rows of a step. The memory is reused from step to step.
#[derive(Clone, Debug)]
pub struct Predictions {
    wanted: Wanted,
    vocab_size: usize,
    /// `[rows, vocab_size]`.
    logits: Vec<f32>,
    top: TopRows,
}

impl Predictions {
    /// None yet; [`crate::Sampler::wants`] tells what is wanted of each.
    pub fn new(wanted: Wanted, vocab_size: usize) -> Self {
        Self { wanted, vocab_size, logits: Vec::new(), top: TopRows::default() }
    }

    /// That of a row; empty where there is none.
    pub fn row(&mut self, index: usize) -> Prediction<'_> {
        match self.wanted {
            Wanted::Logits => {
                let row = self.logits.chunks_exact_mut(self.vocab_size.max(1)).nth(index);
                Prediction::Logits(row.unwrap_or_default())
            }
            Wanted::Top(_) => Prediction::Top(self.top.row(index)),
        }
    }

    /// Runs a step and takes the predictions of its logit rows.
    pub(crate) fn step(&mut self, executor: &mut dyn Executor, batch: &Batch<'_>) -> Result<(), ModelError> {
        match self.wanted {
            Wanted::Logits => {
                let logits = executor.step(batch)?;
                self.logits.clear();
                self.logits.extend_from_slice(logits);
                Ok(())
            }
            Wanted::Top(count) => executor.step_top(batch, count, &mut self.top),
        }
    }
}
