//! The one error type of this crate.

use cortiq_hybrid::HybridError;
use thiserror::Error;

/// Everything that can go wrong in the engine, with the name of what was wrong.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The GPU cannot be used.
    #[error(transparent)]
    Gpu(#[from] cortiq_gpu::GpuError),
    /// The model cannot be placed as asked.
    #[error(transparent)]
    Placement(HybridError),
    /// The container was refused.
    #[error(transparent)]
    Container(#[from] cortiq_cmf::CmfError),
    /// The model cannot be described or computed.
    #[error(transparent)]
    Model(#[from] cortiq_model::ModelError),
    /// The file has no tokenizer, so only token ids can be used.
    #[error("this file has no tokenizer; give token ids instead of text")]
    NoTokenizer,
    /// The file has no chat template.
    #[error("this file has no chat template; use a raw prompt instead")]
    NoChatTemplate,
    /// The file has no skill of that name.
    #[error("this file has no skill `{asked}`; it has {}", listed(available))]
    UnknownSkill {
        /// The name asked for.
        asked: String,
        /// What there is.
        available: Vec<String>,
    },
    /// The file has no task mask of that name.
    #[error("this file has no task mask `{asked}`; it has {}", listed(available))]
    UnknownTask {
        /// The name asked for.
        asked: String,
        /// What there is.
        available: Vec<String>,
    },
    /// A prompt without tokens.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A prompt that leaves no room for an answer.
    #[error("the prompt has {tokens} tokens, which leaves no room for an answer in a context of {context}")]
    PromptTooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Longest sequence.
        context: usize,
    },
    /// A context that the model does not have.
    #[error("a context of {asked} is not possible; this model allows 1 to {limit}")]
    Context {
        /// Positions asked for.
        asked: usize,
        /// The model's limit.
        limit: usize,
    },
    /// A number of threads that cannot be.
    #[error("{0} threads are not possible; allowed are 1 to 1024")]
    Threads(usize),
    /// A number of tokens to guess that cannot be.
    #[error("{0} draft tokens are not possible; allowed are 1 to {max}", max = crate::MAX_DRAFT_TOKENS)]
    DraftTokens(usize),
    /// A scoring window that cannot be used.
    #[error("a window of {asked} is not possible; allowed are 2 to the context of {context}")]
    Window {
        /// Positions asked for.
        asked: usize,
        /// Longest sequence.
        context: usize,
    },
    /// A scoring stride that cannot be used.
    #[error("a stride of {asked} is not possible; allowed are 1 to the window of {window}")]
    Stride {
        /// Positions asked for.
        asked: usize,
        /// Positions per window.
        window: usize,
    },
    /// A text too short to score anything.
    #[error("a text of {0} tokens has no position that can be scored")]
    NothingToScore(usize),
    /// `tokenizer.json` cannot be used; the text says why.
    #[error("tokenizer.json cannot be used: {0}")]
    Tokenizer(String),
    /// The tokenizer could not encode a text.
    #[error("the text cannot be encoded: {0}")]
    Encode(String),
    /// The tokenizer could not decode token ids.
    #[error("the tokens cannot be decoded: {0}")]
    Decode(String),
    /// Text that must stay text holds a special token which this vocabulary can only write as that token.
    #[error("the text contains {0:?}, which this tokenizer cannot encode as anything but the special token")]
    SpecialTokenInText(String),
    /// The chat template does not compile, or it failed for these messages; `message` is the template's own.
    #[error("chat template{}: {message}", at_line(.line))]
    ChatTemplate {
        /// Line of the template, counted from 1, where it is known.
        line: Option<usize>,
        /// What the template or the template engine said.
        message: String,
    },
    /// A stop string that cannot be used; the text says why.
    #[error("stop strings: {0}")]
    StopString(String),
    /// A sampling parameter outside its range.
    #[error("{name} is {value}; allowed is {allowed}")]
    SamplingParameter {
        /// The field of `SamplingParams`.
        name: &'static str,
        /// The value found.
        value: String,
        /// The range, in words.
        allowed: &'static str,
    },
    /// A token id that the vocabulary does not have.
    #[error("token id {id} is outside the vocabulary of {vocab} tokens")]
    TokenOutOfRange {
        /// The id.
        id: u32,
        /// Number of ids, so that the highest is `vocab - 1`.
        vocab: usize,
    },
    /// A row of logits of the wrong length.
    #[error("got {actual} logits for a vocabulary of {expected} tokens")]
    LogitsLength {
        /// Entries in the vocabulary.
        expected: usize,
        /// Entries in the row.
        actual: usize,
    },
    /// A logit that is NaN or positive infinity.
    #[error("the logit of token {id} is {value}")]
    BadLogit {
        /// The token.
        id: u32,
        /// `NaN` or `inf`.
        value: f32,
    },
    /// No token is left to choose from: every logit is negative infinity.
    #[error("every token is excluded: all logits are -inf")]
    NoCandidate,
    /// The operating system gave no random seed.
    #[error("no random seed from the operating system: {0}")]
    Entropy(String),
}

fn at_line(line: &Option<usize>) -> String {
    line.map(|n| format!(", line {n}")).unwrap_or_default()
}

/// Names for a message.
fn listed(names: &[String]) -> String {
    if names.is_empty() {
        return "none".to_owned();
    }
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

impl From<HybridError> for EngineError {
    fn from(error: HybridError) -> Self {
        match error {
            HybridError::Gpu(error) => Self::Gpu(error),
            HybridError::Model(error) => Self::Model(error),
            other => Self::Placement(other),
        }
    }
}
