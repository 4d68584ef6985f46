//! Speculative decoding: tokens guessed ahead are verified together in one step.
//!
//! A guess is kept when it is the very token that the sampler chooses from the model's own logits, so that the text
//! does not depend on the guesses. As a guess is one fixed token `d`, this is rejection sampling: `d` is kept with
//! the probability that the sampler gives it, and otherwise the token has the sampler's distribution without `d`.

mod ahead;
mod head;
mod monitor;
mod ngram;

pub(crate) use ahead::Ahead;

/// Most tokens that are guessed for one step.
pub const MAX_DRAFT_TOKENS: usize = 16;
/// Tokens per step that a prediction head guesses unless told otherwise.
const MTP_DRAFT_TOKENS: usize = 1;
/// Tokens per step that prompt lookup guesses unless told otherwise.
const NGRAM_DRAFT_TOKENS: usize = 4;

/// Whether and how tokens are guessed ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Speculation {
    /// Not at all.
    #[default]
    Off,
    /// By the model's prediction head if it has one, else by prompt lookup.
    Auto,
    /// By what followed the latest tokens the last time they occurred.
    NGram {
        /// Tokens per step, 1 to [`MAX_DRAFT_TOKENS`].
        draft_tokens: usize,
    },
    /// By the model's prediction head.
    Mtp {
        /// Tokens per step, 1 to [`MAX_DRAFT_TOKENS`].
        draft_tokens: usize,
    },
}

/// Who guesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftKind {
    /// Prompt lookup.
    NGram,
    /// The prediction head.
    Mtp,
}

impl DraftKind {
    /// Its name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::NGram => "ngram",
            Self::Mtp => "mtp",
        }
    }
}

impl Speculation {
    /// Guessing by `kind`, with its usual number of tokens where none is given.
    pub fn of_kind(kind: DraftKind, draft_tokens: Option<usize>) -> Self {
        match kind {
            DraftKind::NGram => Self::NGram { draft_tokens: draft_tokens.unwrap_or(NGRAM_DRAFT_TOKENS) },
            DraftKind::Mtp => Self::Mtp { draft_tokens: draft_tokens.unwrap_or(MTP_DRAFT_TOKENS) },
        }
    }

    /// Who guesses how many tokens, for a model with or without a prediction head; none when off.
    fn resolve(self, has_head: bool) -> Option<(DraftKind, usize)> {
        match self {
            Self::Off => None,
            Self::Auto if has_head => Some((DraftKind::Mtp, MTP_DRAFT_TOKENS)),
            Self::Auto => Some((DraftKind::NGram, NGRAM_DRAFT_TOKENS)),
            Self::NGram { draft_tokens } => Some((DraftKind::NGram, draft_tokens)),
            Self::Mtp { draft_tokens } => Some((DraftKind::Mtp, draft_tokens)),
        }
    }
}
