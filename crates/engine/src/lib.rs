//! Runs a model: sequences, prefill, the decode loop, sampling, and the way from text to tokens and back.
//!
//! Owns: [`Engine`], its sequences, the sampler, stop strings, tokenizer, detokenizer and chat template.
//! Entry point: [`Engine::open`]. Must not know: the layout of a file, which device computes, terminals, HTTP.

pub mod chat;
pub mod detokenizer;
mod engine;
mod error;
mod generate;
mod perplexity;
mod predictions;
pub mod sampler;
mod sequence;
mod speculative;
pub mod stop;
pub mod tokenizer;

pub use chat::{ChatRequest, ChatTemplate};
pub use detokenizer::Detokenizer;
pub use engine::{Engine, EngineOptions, ExecutorKind, LogitRows};
pub use error::EngineError;
pub use generate::{FinishReason, GenerateOptions, Generation};
pub use perplexity::{Perplexity, PerplexityOptions};
pub use predictions::{Prediction, Predictions};
pub use sampler::{Sampler, SamplingParams};
pub use sequence::Sequence;
pub use speculative::{DraftKind, MAX_DRAFT_TOKENS, Speculation};
pub use stop::{StopMatcher, StopOutcome};
pub use tokenizer::{SpecialTokens, Tokenizer};
