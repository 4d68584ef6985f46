//! Flags about guessing tokens ahead.

use anyhow::bail;
use clap::{Args, ValueEnum};
use cortiq_engine::{DraftKind, Engine, Generation, MAX_DRAFT_TOKENS, Speculation};
use serde::Serialize;

use crate::output::Usage;

/// How tokens are guessed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum SpeculativeName {
    /// By the model's prediction head if it has one, else by prompt lookup
    Auto,
    /// Not at all
    #[default]
    Off,
    /// By the model's prediction head
    Mtp,
    /// By what followed the latest tokens the last time they occurred
    #[value(name = "ngram")]
    NGram,
}

/// Flags about guessing tokens ahead.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Execution")]
pub struct SpeculativeOptions {
    /// Guess tokens ahead and verify them in one step; the answer is the same without, up to rounding
    #[arg(long, value_enum, default_value_t, value_name = "HOW")]
    speculative: SpeculativeName,
    /// Tokens to guess per step [default: 1 of mtp, 4 of ngram]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=MAX_DRAFT_TOKENS as i64))]
    draft_tokens: Option<u8>,
}

impl SpeculativeOptions {
    /// Whether tokens are to be guessed.
    pub fn on(&self) -> bool {
        self.speculative != SpeculativeName::Off
    }

    /// Refuses flags that contradict each other.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.draft_tokens.is_some() && !self.on() {
            bail!(Usage("--draft-tokens needs --speculative auto, mtp or ngram".to_owned()));
        }
        Ok(())
    }

    /// What they mean for a model.
    pub fn choose(&self, engine: &Engine) -> anyhow::Result<Speculation> {
        let has_head = engine.has_prediction_head();
        let kind = match self.speculative {
            SpeculativeName::Off => return Ok(Speculation::Off),
            SpeculativeName::Mtp if !has_head => {
                bail!("--speculative mtp: this model has no prediction head; ngram works with every model")
            }
            SpeculativeName::Auto if has_head => DraftKind::Mtp,
            SpeculativeName::Mtp => DraftKind::Mtp,
            SpeculativeName::Auto | SpeculativeName::NGram => DraftKind::NGram,
        };
        Ok(Speculation::of_kind(kind, self.draft_tokens.map(usize::from)))
    }
}

/// What `--json` says about guesses.
#[derive(Serialize)]
pub struct Guesses {
    /// Who guessed.
    pub kind: &'static str,
    /// Tokens that were guessed and verified.
    pub drafted: usize,
    /// Those that were right.
    pub accepted: usize,
}

impl Guesses {
    /// Of a generation; none when nobody was asked to guess.
    pub fn of(generation: &Generation) -> Option<Self> {
        let Generation { speculation, drafted, accepted, .. } = *generation;
        speculation.map(|kind| Self { kind: kind.name(), drafted, accepted })
    }
}
