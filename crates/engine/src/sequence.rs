//! One conversation's tokens and the handle of its state.

use cortiq_model::SequenceId;

/// Tokens that a sequence holds; their state is in the executor. Made and ended by [`crate::Engine`].
#[derive(Debug)]
pub struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) tokens: Vec<u32>,
}

impl Sequence {
    pub(crate) fn new(id: SequenceId) -> Self {
        Self { id, tokens: Vec::new() }
    }

    /// How many leading tokens of `ids` need not be computed again. The last one always is, for its logits.
    pub(crate) fn reusable(&self, ids: &[u32]) -> usize {
        let shared = self.tokens.iter().zip(ids).take_while(|(a, b)| a == b).count();
        shared.min(ids.len().saturating_sub(1))
    }

    /// The tokens computed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}
