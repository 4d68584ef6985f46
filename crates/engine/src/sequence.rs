//! One conversation's tokens and the handle of its state.

use cortiq_model::SequenceId;

/// Tokens that a sequence holds; their state is in the executor. Made and ended by [`crate::Engine`].
#[derive(Debug)]
pub struct Sequence {
    pub(crate) id: SequenceId,
    pub(crate) tokens: Vec<u32>,
    /// Length that it is known to reach, see [`cortiq_model::Span`].
    pub(crate) known_len: usize,
}

impl Sequence {
    pub(crate) fn new(id: SequenceId) -> Self {
        Self { id, tokens: Vec::new(), known_len: 0 }
    }

    /// The tokens computed so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}
