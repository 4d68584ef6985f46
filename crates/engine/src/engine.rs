//! [`Engine`]: one open model, its executor, its tokenizer and its template.

use std::path::Path;
use std::sync::Arc;

use cortiq_cmf::{CmfFile, Header, Mask};
use cortiq_cpu::{CpuExecutor, CpuOptions, Isa};
use cortiq_gpu::GpuOptions;
use cortiq_hybrid::{ArmOptions, GpuLayers, GpuPlan, PlacementReport};
use cortiq_model::{
    Batch, Executor, HostState, KernelTime, KvDtype, MappedWeights, ModelError, Precision, Program, Span, StateLimits,
    Weights,
};
use cortiq_reference::ReferenceExecutor;

use crate::{ChatRequest, ChatTemplate, EngineError, Predictions, SamplingParams, Sequence, Tokenizer};

/// Longest context when the caller does not say: a cache for more is rarely wanted and never by accident.
const DEFAULT_CONTEXT: usize = 8192;

/// Which executor computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExecutorKind {
    /// Plain loops: slow, the measure of the others.
    Reference,
    /// Threads and vector kernels.
    #[default]
    Cpu,
    /// A GPU, for as much of the model as [`EngineOptions::gpu`] says and as fits; the CPU for the rest.
    Gpu,
    /// [`ExecutorKind::Gpu`] where there is a GPU that can be used, else [`ExecutorKind::Cpu`].
    Auto,
}

/// How a model is opened.
#[derive(Clone, Debug, Default)]
pub struct EngineOptions {
    /// Which executor computes.
    pub executor: ExecutorKind,
    /// Threads; all processors when none.
    pub threads: Option<usize>,
    /// Longest sequence; the model's own limit, at most 8,192, when none.
    pub context: Option<usize>,
    /// Skill whose tensors replace the originals.
    pub skill: Option<String>,
    /// Task mask to apply; the whole model runs when none, whatever masks the file has.
    pub task: Option<String>,
    /// How keys and values are kept; what the executor prefers when none: f32, or f16 on a GPU in its fast mode.
    pub kv: Option<KvDtype>,
    /// Which GPU, and which part of the model it gets.
    pub gpu: GpuPlan,
    /// How exact a cpu or gpu executor is.
    pub precision: Precision,
    /// Bytes of device memory that a gpu executor may use; what the device has when none.
    pub gpu_budget: Option<u64>,
}

impl EngineOptions {
    /// The cpu executor's part.
    fn cpu_options(&self) -> Result<CpuOptions, EngineError> {
        let threads = self.threads.unwrap_or(CpuOptions::default().threads);
        if threads == 0 || threads > 1024 {
            return Err(EngineError::Threads(threads));
        }
        let (isa, kv, precision) = (Isa::detect(), self.kv.unwrap_or_default(), self.precision);
        Ok(CpuOptions { threads, isa, kv, precision, ..CpuOptions::default() })
    }
}

/// One open model.
pub struct Engine {
    pub(crate) executor: Box<dyn Executor>,
    tokenizer: Option<Tokenizer>,
    template: Option<ChatTemplate>,
    /// Tokens that end an answer.
    eos: Vec<u32>,
    sampling: SamplingParams,
    context: usize,
    bytes_per_token: u64,
    /// Whether speculation goes on where it is measured to be slower.
    pub(crate) always_speculate: bool,
    file: Option<Arc<CmfFile>>,
    placement: Option<PlacementReport>,
}

/// One sequence of full length and a snapshot of it; blocks are allocated when they are needed.
fn limits(program: &Program, context: usize, kv: KvDtype) -> StateLimits {
    let max_bytes = HostState::bytes_of_sequence(&program.states, context, kv).saturating_mul(2);
    StateLimits { max_positions: context, max_bytes }
}

/// What runs a model, and where its parts are if a GPU takes part.
type Made = (Box<dyn Executor>, Option<PlacementReport>);

/// The executor that `options` ask for.
fn make_executor(
    program: Program,
    weights: Arc<dyn Weights>,
    context: usize,
    options: &EngineOptions,
) -> Result<Made, EngineError> {
    match options.executor {
        ExecutorKind::Reference => {
            let kv = options.kv.unwrap_or_default();
            let limits = limits(&program, context, kv);
            Ok((Box::new(ReferenceExecutor::with_kv(program, weights, limits, kv)?), None))
        }
        ExecutorKind::Cpu => {
            let cpu = options.cpu_options()?;
            let limits = limits(&program, context, cpu.kv);
            Ok((Box::new(CpuExecutor::new(program, weights, limits, cpu)?), None))
        }
        ExecutorKind::Gpu => {
            let (cpu, kv) = (options.cpu_options()?, options.kv.unwrap_or(GpuOptions::kv_of(options.precision)));
            let gpu = GpuOptions {
                kv,
                budget: options.gpu_budget,
                ..GpuOptions::new(limits(&program, context, kv)).with_precision(options.precision)
            };
            let cpu_limits = limits(&program, context, cpu.kv);
            let arms = ArmOptions { cpu, cpu_limits, gpu };
            let (supervisor, report) = cortiq_hybrid::open(program, weights, &options.gpu, arms)?;
            Ok((Box::new(supervisor), Some(report)))
        }
        ExecutorKind::Auto => {
            let on = |executor| EngineOptions { executor, ..options.clone() };
            // No GPU keeps a cache in q8.
            if options.kv == Some(KvDtype::Q8) || !options.gpu.adapter.may_exist() {
                return make_executor(program, weights, context, &on(ExecutorKind::Cpu));
            }
            match make_executor(program.clone(), Arc::clone(&weights), context, &on(ExecutorKind::Gpu)) {
                // Whoever names layers wants to know; all others want an answer.
                Err(EngineError::Gpu(_)) if options.gpu.layers == GpuLayers::Fit => {
                    make_executor(program, weights, context, &on(ExecutorKind::Cpu))
                }
                made => made,
            }
        }
    }
}

impl Engine {
    /// Maps a container (any shard of it) and prepares its executor. [`Engine::from_file`] takes one that was opened
    /// in another way.
    pub fn open(path: &Path, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::from_file(Arc::new(CmfFile::open_sharded(path)?), options)
    }

    /// Prepares the executor of an open container.
    pub fn from_file(file: Arc<CmfFile>, options: &EngineOptions) -> Result<Self, EngineError> {
        check_skill(&file, options.skill.as_deref())?;
        let weights = Arc::new(MappedWeights::new(Arc::clone(&file), options.skill.clone()));
        let mask = find_mask(&file, options.task.as_deref())?;
        let mut engine = Self::from_weights_masked(file.header(), weights, mask, options)?;
        engine.tokenizer = file.vocab().map(Tokenizer::from_json).transpose()?;
        engine.template = engine.chat_template(file.header())?;
        engine.eos = file.header().tokenizer_config.as_ref().map_or_else(Vec::new, |c| c.eos_token_ids.clone());
        if let Some(defaults) = &file.header().generation {
            engine.sampling = SamplingParams::from_generation_defaults(defaults);
        }
        engine.file = Some(file);
        Ok(engine)
    }

    /// An engine without tokenizer, for weights that are not in a file, and so without skills and masks.
    pub fn from_weights(
        header: &Header,
        weights: Arc<dyn Weights>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        if let Some(asked) = options.skill.clone() {
            return Err(EngineError::UnknownSkill { asked, available: Vec::new() });
        }
        if let Some(asked) = options.task.clone() {
            return Err(EngineError::UnknownTask { asked, available: Vec::new() });
        }
        Self::from_weights_masked(header, weights, None, options)
    }

    fn from_weights_masked(
        header: &Header,
        weights: Arc<dyn Weights>,
        mask: Option<&Mask>,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let program = match mask {
            Some(mask) => Program::masked(header, &*weights, mask)?,
            None => Program::from_weights(header, &*weights)?,
        };
        let limit = program.max_position_embeddings;
        let context = options.context.unwrap_or(DEFAULT_CONTEXT.min(limit));
        if context == 0 || context > limit {
            return Err(EngineError::Context { asked: context, limit });
        }
        let bytes_per_token = program.bytes_per_token(&*weights)?;
        let (executor, placement) = make_executor(program, weights, context, options)?;
        Ok(Self {
            executor,
            tokenizer: None,
            template: None,
            eos: Vec::new(),
            sampling: SamplingParams::default(),
            context,
            bytes_per_token,
            always_speculate: false,
            file: None,
            placement,
        })
    }

    fn chat_template(&self, header: &Header) -> Result<Option<ChatTemplate>, EngineError> {
        let Some(config) = &header.tokenizer_config else { return Ok(None) };
        let Some(source) = &config.chat_template else { return Ok(None) };
        let token = |id: Option<u32>| id.and_then(|id| self.tokenizer.as_ref().and_then(|t| t.token_of(id)));
        let named = [
            ("bos_token", token(config.bos_token_id)),
            ("eos_token", token(config.eos_token_ids.first().copied())),
            ("pad_token", token(config.pad_token_id)),
        ];
        let special = named.into_iter().filter_map(|(name, token)| token.map(|token| (name, token)));
        ChatTemplate::new(source, special).map(Some)
    }

    /// Starts to time every kernel; see [`Executor::start_profile`].
    pub fn start_profile(&mut self) -> Result<(), EngineError> {
        Ok(self.executor.start_profile()?)
    }

    /// Times since [`Engine::start_profile`], longest first.
    pub fn end_profile(&mut self) -> Vec<KernelTime> {
        self.executor.end_profile()
    }

    /// Name of the executor.
    pub fn executor_name(&self) -> &'static str {
        self.executor.name()
    }

    /// Where the model's parts are and why; none where no GPU was to take part.
    pub fn placement(&self) -> Option<&PlacementReport> {
        self.placement.as_ref()
    }

    /// The container, unless the weights are not in a file.
    pub fn file(&self) -> Option<&CmfFile> {
        self.file.as_deref()
    }

    /// Longest sequence, in positions.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Number of token ids that the model knows.
    pub fn vocab_size(&self) -> usize {
        self.executor.program().vocab_size
    }

    /// Bytes of weights that decoding one token reads.
    pub fn bytes_per_token(&self) -> u64 {
        self.bytes_per_token
    }

    /// Tokens that end an answer.
    pub fn eos_token_ids(&self) -> &[u32] {
        &self.eos
    }

    /// Sampling that the model's makers recommend, or the engine's own defaults.
    pub fn default_sampling(&self) -> &SamplingParams {
        &self.sampling
    }

    /// The tokenizer. A file without one can only be used with token ids.
    pub fn tokenizer(&self) -> Result<&Tokenizer, EngineError> {
        self.tokenizer.as_ref().ok_or(EngineError::NoTokenizer)
    }

    /// Renders a conversation with the file's template and encodes it. Special tokens come from the template alone.
    pub fn chat_prompt(&self, request: &ChatRequest<'_>) -> Result<Vec<u32>, EngineError> {
        let template = self.template.as_ref().ok_or(EngineError::NoChatTemplate)?;
        self.tokenizer()?.encode(&template.render(request)?, false)
    }

    /// Whether the file has a chat template.
    pub fn has_chat_template(&self) -> bool {
        self.template.is_some()
    }

    /// An empty sequence. Give it back with [`Engine::close`].
    pub fn sequence(&mut self) -> Result<Sequence, EngineError> {
        Ok(Sequence::new(self.executor.states().open()?))
    }

    /// Ends a sequence and frees its state.
    pub fn close(&mut self, sequence: Sequence) -> Result<(), EngineError> {
        Ok(self.executor.states().close(sequence.id)?)
    }

    /// Checks that `ids` can be a prompt: not empty, inside the vocabulary, and room for a token after it.
    pub fn check_prompt(&self, ids: &[u32]) -> Result<(), EngineError> {
        if ids.is_empty() {
            return Err(EngineError::EmptyPrompt);
        }
        if ids.len() >= self.context {
            return Err(EngineError::PromptTooLong { tokens: ids.len(), context: self.context });
        }
        match ids.iter().find(|&&id| id as usize >= self.vocab_size()) {
            Some(&id) => Err(EngineError::TokenOutOfRange { id, vocab: self.vocab_size() }),
            None => Ok(()),
        }
    }

    /// How many leading tokens of `ids` need not be computed again: those that `sequence` holds, if its state can go
    /// back there. The last one is always computed, for its logits.
    pub(crate) fn reusable(&mut self, sequence: &Sequence, ids: &[u32]) -> Result<usize, EngineError> {
        let same = sequence.tokens.iter().zip(ids).take_while(|(a, b)| a == b).count();
        let shared = same.min(ids.len().saturating_sub(1));
        Ok(if self.executor.states().can_truncate(sequence.id, shared)? { shared } else { 0 })
    }

    /// Makes `sequence` hold exactly `ids`, of which it keeps the first `kept`, and predicts what follows the last one.
    /// `with_head` keeps the state of the prediction head too, but for the last position, whose next token is open.
    pub(crate) fn feed(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        kept: usize,
        with_head: bool,
        out: &mut Predictions,
    ) -> Result<(), EngineError> {
        self.executor.states().truncate(sequence.id, kept)?;
        sequence.tokens.truncate(kept);
        sequence.known_len = ids.len();
        let (mut start, chunk) = (kept, self.prefill_chunk());
        while ids.len() - start > chunk {
            let end = start + chunk;
            self.extend(sequence, &ids[start..end], LogitRows::None)?;
            if with_head {
                self.teach_head(0, &ids[start + 1..=end])?;
            }
            start = end;
        }
        self.predict(sequence, &ids[start..], LogitRows::Last, out)?;
        if with_head {
            self.teach_head(0, &ids[start + 1..])?;
        }
        Ok(())
    }

    /// Tokens of a prompt that one step computes.
    pub fn prefill_chunk(&self) -> usize {
        self.executor.prefill_chunk().max(1)
    }

    /// Appends `ids` to `sequence` in one step; returns the logits asked for, `[rows, vocab_size]`.
    pub fn extend(&mut self, sequence: &mut Sequence, ids: &[u32], rows: LogitRows) -> Result<&[f32], EngineError> {
        self.append(sequence, ids, rows, |executor, batch| executor.step(batch).map(|_| ()))?;
        Ok(self.executor.logits())
    }

    /// Appends `ids` to `sequence` in one step; `out` gets what it wants of the rows asked for.
    pub fn predict(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        rows: LogitRows,
        out: &mut Predictions,
    ) -> Result<(), EngineError> {
        self.append(sequence, ids, rows, |executor, batch| out.step(executor, batch))
    }

    /// Appends `ids` to `sequence` by `step`.
    fn append(
        &mut self,
        sequence: &mut Sequence,
        ids: &[u32],
        rows: LogitRows,
        step: impl FnOnce(&mut dyn Executor, &Batch<'_>) -> Result<(), ModelError>,
    ) -> Result<(), EngineError> {
        let start = sequence.tokens.len();
        let span = Span { sequence: sequence.id, start, len: ids.len(), known_len: sequence.known_len };
        let all: Vec<usize>;
        let last = [ids.len().saturating_sub(1)];
        let logit_rows: &[usize] = match rows {
            LogitRows::None => &[],
            LogitRows::Last => &last,
            LogitRows::All if ids.len() == 1 => &last,
            LogitRows::All => {
                all = (0..ids.len()).collect();
                &all
            }
        };
        if let Some(file) = &self.file {
            // A mapped file that was cut short would otherwise end the process with SIGBUS in the middle of a step.
            file.check_length()?;
        }
        let batch = Batch { tokens: ids, spans: &[span], logit_rows };
        // Nothing of a failed step is kept; state that cannot go back is empty then.
        if let Err(error) = step(&mut *self.executor, &batch) {
            let len = self.executor.states().len(sequence.id)?;
            sequence.tokens.truncate(len);
            return Err(error.into());
        }
        sequence.tokens.extend_from_slice(ids);
        Ok(())
    }

    /// Logits after `ids`: of the last position, or of every one. Rows of `vocab_size` each.
    pub fn logits(&mut self, ids: &[u32], all: bool) -> Result<Vec<Vec<f32>>, EngineError> {
        // A full context is fine here: nothing comes after it.
        if ids.len() != self.context {
            self.check_prompt(ids)?;
        }
        let vocab_size = self.vocab_size();
        let mut sequence = self.sequence()?;
        sequence.known_len = ids.len();
        let mut result = Vec::new();
        let size = self.prefill_chunk();
        let outcome = ids.chunks(size).enumerate().try_for_each(|(i, chunk)| {
            let last = (i + 1) * size >= ids.len();
            let rows = match (all, last) {
                (true, _) => LogitRows::All,
                (false, true) => LogitRows::Last,
                (false, false) => LogitRows::None,
            };
            let logits = self.extend(&mut sequence, chunk, rows)?;
            result.extend(logits.chunks_exact(vocab_size).map(<[f32]>::to_vec));
            Ok(())
        });
        self.close(sequence)?;
        outcome.map(|()| result)
    }
}

/// Refuses a skill that the file does not have.
fn check_skill(file: &CmfFile, asked: Option<&str>) -> Result<(), EngineError> {
    let skills = &file.header().skills;
    match asked {
        Some(asked) if !skills.iter().any(|record| record.id == asked) => Err(EngineError::UnknownSkill {
            asked: asked.to_owned(),
            available: skills.iter().map(|record| record.id.clone()).collect(),
        }),
        _ => Ok(()),
    }
}

/// The task mask of that name.
fn find_mask<'a>(file: &'a CmfFile, asked: Option<&str>) -> Result<Option<&'a Mask>, EngineError> {
    let Some(asked) = asked else { return Ok(None) };
    let found = file.masks().and_then(|masks| masks.by_name(asked));
    match found {
        Some(mask) => Ok(Some(mask)),
        None => Err(EngineError::UnknownTask {
            asked: asked.to_owned(),
            available: file.masks().into_iter().flat_map(|c| &c.masks).map(|mask| mask.name.clone()).collect(),
        }),
    }
}

/// Which rows of a step produce logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitRows {
    /// None of them.
    None,
    /// The last one.
    Last,
    /// Every one.
    All,
}
