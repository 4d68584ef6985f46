//! Executors of a model, and steps that show every row.

use std::path::Path;
use std::sync::Arc;

use cortiq_cmf::{CmfFile, Header};
use cortiq_cpu::{CpuExecutor, CpuOptions};
use cortiq_model::{Batch, Executor, MappedWeights, Precision, Program, SequenceId, Span, StateLimits, Weights};
use cortiq_reference::ReferenceExecutor;

/// Room for every test here.
const LIMITS: StateLimits = StateLimits { max_positions: 512, max_bytes: 1 << 30 };

/// A model that can be run.
pub struct Model {
    /// Its description.
    pub header: Header,
    /// Its tensors.
    pub weights: Arc<dyn Weights>,
}

/// The model in a container.
///
/// # Panics
/// When the file cannot be opened.
#[allow(clippy::expect_used)]
pub fn open_model(path: &Path) -> Model {
    let file = Arc::new(CmfFile::open_owned(path).expect("the container opens"));
    Model { header: file.header().clone(), weights: Arc::new(MappedWeights::new(file, None)) }
}

impl Model {
    /// The model as a list of operations.
    ///
    /// # Panics
    /// When it cannot be lowered.
    #[allow(clippy::expect_used)]
    pub fn program(&self) -> Program {
        Program::from_weights(&self.header, &*self.weights).expect("the model can be lowered")
    }

    /// The reference executor.
    ///
    /// # Panics
    /// When it refuses the model.
    #[allow(clippy::expect_used)]
    pub fn reference(&self) -> ReferenceExecutor {
        ReferenceExecutor::new(self.program(), Arc::clone(&self.weights), LIMITS).expect("a reference executor")
    }

    /// The cpu executor on `threads` threads, in exact mode.
    ///
    /// # Panics
    /// When it refuses the model.
    pub fn cpu(&self, threads: usize) -> CpuExecutor {
        self.cpu_with(CpuOptions { threads, precision: Precision::Exact, ..CpuOptions::default() })
    }

    /// The cpu executor.
    ///
    /// # Panics
    /// When it refuses the model.
    #[allow(clippy::expect_used)]
    pub fn cpu_with(&self, options: CpuOptions) -> CpuExecutor {
        CpuExecutor::new(self.program(), Arc::clone(&self.weights), LIMITS, options).expect("a cpu executor")
    }
}

/// The tokens of one sequence in a step.
#[derive(Clone, Copy)]
pub struct Piece<'a> {
    /// The sequence.
    pub sequence: SequenceId,
    /// Its length before.
    pub start: usize,
    /// What it grows by.
    pub tokens: &'a [u32],
    /// Length that it is known to reach.
    pub known_len: usize,
}

/// One step with all `pieces`; the logits of every row, per piece `[tokens, vocab_size]`.
///
/// # Panics
/// When the step fails.
#[allow(clippy::expect_used)]
pub fn step(executor: &mut dyn Executor, pieces: &[Piece<'_>]) -> Vec<Vec<f32>> {
    let span =
        |p: &Piece<'_>| Span { sequence: p.sequence, start: p.start, len: p.tokens.len(), known_len: p.known_len };
    let spans: Vec<Span> = pieces.iter().map(span).collect();
    let tokens: Vec<u32> = pieces.iter().flat_map(|p| p.tokens).copied().collect();
    let rows: Vec<usize> = (0..tokens.len()).collect();
    let vocab_size = executor.program().vocab_size;
    let batch = Batch { tokens: &tokens, spans: &spans, logit_rows: &rows };
    let mut logits = executor.step(&batch).expect("the step runs");
    let take = |p: &Piece<'_>| {
        let (own, rest) = logits.split_at(p.tokens.len() * vocab_size);
        logits = rest;
        own.to_vec()
    };
    pieces.iter().map(take).collect()
}

/// Logits of every position of `tokens` in a fresh sequence that is fed `chunk` tokens at a time.
///
/// # Panics
/// When a step fails.
#[allow(clippy::expect_used)]
pub fn alone(executor: &mut dyn Executor, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let sequence = executor.states().open().expect("room for a sequence");
    let mut logits = Vec::new();
    for (i, part) in tokens.chunks(chunk).enumerate() {
        let piece = Piece { sequence, start: i * chunk, tokens: part, known_len: tokens.len() };
        logits.extend(step(executor, &[piece]).remove(0));
    }
    executor.states().close(sequence).expect("the sequence closes");
    logits
}
