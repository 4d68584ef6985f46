//! The decode loop.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::speculative::Ahead;
use crate::{Detokenizer, DraftKind, Engine, EngineError, Sampler, SamplingParams, Sequence, Speculation, StopMatcher};

/// What to generate.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens to produce.
    pub max_tokens: usize,
    /// How tokens are drawn.
    pub sampling: SamplingParams,
    /// Strings that end the text; they are not part of it.
    pub stop: Vec<String>,
    /// Go on after an end token.
    pub ignore_eos: bool,
    /// Whether and how tokens are guessed ahead; the tokens are the same without, up to the executor's rounding.
    pub speculative: Speculation,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// An end token or a stop string.
    Stop,
    /// The token limit, or the context is full.
    Length,
    /// The caller asked to stop.
    Cancelled,
}

impl FinishReason {
    /// Its name in the APIs.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Cancelled => "cancelled",
        }
    }
}

/// A finished generation.
#[derive(Clone, Debug)]
pub struct Generation {
    /// Token ids, an end token included when it was produced.
    pub tokens: Vec<u32>,
    /// Their text, without special tokens and cut before a stop string; empty without a tokenizer.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Prompt tokens that were computed (not those a sequence already held).
    pub prompt_computed: usize,
    /// Time to the first logits.
    pub prompt_time: Duration,
    /// Time from there to the end.
    pub predicted_time: Duration,
    /// Seed of the draws, for repeating it.
    pub seed: u64,
    /// Who guessed ahead, if anybody was asked to.
    pub speculation: Option<DraftKind>,
    /// Guessed tokens that were verified.
    pub drafted: usize,
    /// Guessed tokens that became a part of the answer.
    pub accepted: usize,
}

/// Turns tokens into text that can be shown.
struct TextOut {
    detokenizer: Option<Detokenizer>,
    stop: StopMatcher,
    text: String,
}

impl TextOut {
    /// Adds text; gives what is new and certain to `on_text`. Breaks at a stop string or when `on_text` does.
    fn push(&mut self, piece: &str, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Option<FinishReason> {
        let outcome = self.stop.push(piece);
        let cancelled = self.emit(&outcome.text, on_text);
        if outcome.matched.is_some() { Some(FinishReason::Stop) } else { cancelled }
    }

    fn emit(&mut self, text: &str, on_text: &mut dyn FnMut(&str) -> ControlFlow<()>) -> Option<FinishReason> {
        if text.is_empty() {
            return None;
        }
        self.text.push_str(text);
        on_text(text).is_break().then_some(FinishReason::Cancelled)
    }

    fn token(
        &mut self,
        id: u32,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Option<FinishReason>, EngineError> {
        let piece = match &mut self.detokenizer {
            Some(detokenizer) => detokenizer.push(id)?.unwrap_or_default(),
            None => String::new(),
        };
        // Called for empty pieces too, so that a caller can cancel between any two tokens.
        if piece.is_empty() {
            return Ok(on_text("").is_break().then_some(FinishReason::Cancelled));
        }
        Ok(self.push(&piece, on_text))
    }

    /// Gives out what was held back.
    fn finish(
        &mut self,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Option<FinishReason>, EngineError> {
        if self.stop.matched().is_some() {
            return Ok(None);
        }
        let rest = self.detokenizer.as_mut().map_or_else(|| Ok(String::new()), Detokenizer::flush)?;
        let reason = self.push(&rest, on_text).filter(|reason| *reason == FinishReason::Stop);
        if reason.is_none() {
            let held = self.stop.flush();
            self.emit(&held, on_text);
        }
        Ok(reason)
    }
}

/// A running generation.
struct Run<'a> {
    options: &'a GenerateOptions,
    sampler: Sampler,
    ahead: Ahead,
    out: TextOut,
    tokens: Vec<u32>,
}

impl Engine {
    /// Continues `prompt` in `sequence`, which keeps what it shares with the prompt. `on_text` gets the text piece
    /// by piece, never a part of a character, and ends the generation by breaking.
    pub fn generate(
        &mut self,
        sequence: &mut Sequence,
        prompt: &[u32],
        options: &GenerateOptions,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<Generation, EngineError> {
        self.check_prompt(prompt)?;
        let mut sampler = Sampler::new(options.sampling.clone(), self.vocab_size())?;
        sampler.accept_prompt(prompt)?;
        let stop = StopMatcher::new(&options.stop)?;
        let detokenizer = self.tokenizer().ok().map(|tokenizer| Detokenizer::new(tokenizer, true));
        let out = TextOut { detokenizer, stop, text: String::new() };
        let mut ahead = self.look_ahead(prompt, options.speculative, sampler.wants())?;

        let start = Instant::now();
        let reused = self.reusable(sequence, prompt)?;
        self.feed_prompt(sequence, prompt, reused, &mut ahead)?;
        let prompt_time = start.elapsed();

        let mut run = Run { options, sampler, ahead, out, tokens: Vec::new() };
        let decoded = self.decode(sequence, &mut run, on_text);
        // Also after an error: no snapshot and no guessed token may stay.
        let settled = self.settle(sequence, &mut run.ahead);
        let mut finish_reason = decoded?;
        settled?;
        let Run { sampler, ahead, mut out, tokens, .. } = run;
        self.finish_head(&ahead, tokens.last().copied())?;
        if let Some(reason) = out.finish(on_text)? {
            finish_reason = reason;
        }
        Ok(Generation {
            tokens,
            text: out.text,
            finish_reason,
            prompt_computed: prompt.len() - reused,
            prompt_time,
            predicted_time: start.elapsed() - prompt_time,
            seed: sampler.seed(),
            speculation: ahead.kind(),
            drafted: ahead.drafted,
            accepted: ahead.accepted,
        })
    }

    /// Draws tokens until there is a reason to end. The last one is not fed to the model.
    fn decode(
        &mut self,
        sequence: &mut Sequence,
        run: &mut Run<'_>,
        on_text: &mut dyn FnMut(&str) -> ControlFlow<()>,
    ) -> Result<FinishReason, EngineError> {
        let Run { options, sampler, ahead, out, tokens } = run;
        while tokens.len() < options.max_tokens {
            let id = sampler.choose(ahead.prediction())?;
            sampler.accept(id)?;
            ahead.choose(id);
            tokens.push(id);
            if !options.ignore_eos && self.eos_token_ids().contains(&id) {
                return Ok(FinishReason::Stop);
            }
            if let Some(reason) = out.token(id, on_text)? {
                return Ok(reason);
            }
            let left = options.max_tokens - tokens.len();
            if left == 0 || self.settled_len(sequence, ahead) + 1 > self.context() {
                break;
            }
            self.advance(sequence, ahead, id, left)?;
        }
        Ok(FinishReason::Length)
    }
}
