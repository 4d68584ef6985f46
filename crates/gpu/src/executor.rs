//! [`GpuExecutor`]: a step is one small upload, a few submissions and one read-back.

mod pace;
mod part;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cortiq_model::{
    Batch, DraftInput, DraftSource, Executor, HeadOp, KernelTime, KvDtype, ModelError, Op, Program, Row, SequenceState,
    Slot, Span, TopRows, Wanted, Weights,
};

use crate::kernel::{Dispatch, Kernels, StepSize};
use crate::ops::{self, Head, Top, top_size, top_slice};
use crate::options::GpuOptions;
use crate::plan::{Class, DeviceWeights, Parts, Recorder, Scratch};
use crate::profile::Profiler;
use crate::residency::{Budget, Need};
use crate::slots::Slots;
use crate::state::DeviceState;
use crate::step::{StepLayout, StepWriter};
use crate::{Gpu, GpuError};
use pace::{Pace, Queued};

/// Rows whose logits are computed and read back at a time.
pub(crate) const HEAD_ROWS: usize = 64;

/// Most rows of a submission: more would need more workgroups along a dimension than there may be.
const MAX_ROWS: usize = 32_768;

/// Rows of the buffers until a longer batch comes.
const FIRST_ROWS: usize = 16;

/// Which operations a plan runs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Stage {
    /// These of the program's.
    Trunk(Range<usize>),
    /// The prediction head's.
    Draft,
}

/// Whose logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum HeadOf {
    Trunk,
    Draft,
}

/// Recorded dispatches by what they compute and for which class of rows.
#[derive(Default)]
struct Plans {
    bodies: HashMap<(Stage, Class), Vec<Dispatch>>,
    /// By the operation that they run, which is the same whatever comes before.
    heads: HashMap<(HeadOf, Class), Vec<Dispatch>>,
    /// Choices from the logits, by their number of tokens.
    tops: HashMap<usize, Top>,
}

/// Buffers whose sizes follow the batches.
struct Buffers {
    slots: Slots,
    step: wgpu::Buffer,
    step_layout: StepLayout,
    head: Head,
    logits: wgpu::Buffer,
    /// Rows that go to another executor; grows when they need more.
    crossing: Option<wgpu::Buffer>,
}

/// Hidden states on the device that a draft can continue.
#[derive(Default)]
struct HiddenRows {
    buffer: Option<wgpu::Buffer>,
    rows: Vec<Row>,
}

/// Executes a program on a GPU.
pub struct GpuExecutor {
    gpu: Arc<Gpu>,
    kernels: Kernels,
    program: Program,
    weights: DeviceWeights,
    state: DeviceState,
    buffers: Buffers,
    scratch: Scratch,
    plans: Plans,
    options: GpuOptions,
    writer: StepWriter,
    pace: Pace,
    trunk: HiddenRows,
    drafted: HiddenRows,
    /// What the present step brings back.
    wanted: Wanted,
    logits: Vec<f32>,
    top: TopRows,
    /// Rows from the device, padding included.
    crossed: Vec<f32>,
    profiler: Option<Profiler>,
}

impl GpuExecutor {
    /// An executor for `program`, whose tensors are in `weights`. Weights are uploaded and kernels compiled here, so
    /// that the first step is like every other.
    pub fn new(
        gpu: Arc<Gpu>,
        program: Program,
        weights: Arc<dyn Weights>,
        options: GpuOptions,
    ) -> Result<Self, GpuError> {
        let whole = 0..program.ops.len();
        Self::of_parts(gpu, program, weights, options, &[whole])
    }

    /// An executor that will only be asked for `parts` of the program's operations, and for the draft if the program
    /// has one. Only their weights are uploaded.
    pub fn of_parts(
        gpu: Arc<Gpu>,
        program: Program,
        weights: Arc<dyn Weights>,
        options: GpuOptions,
        parts: &[Range<usize>],
    ) -> Result<Self, GpuError> {
        if parts.iter().any(|part| part.start > part.end || part.end > program.ops.len()) {
            return Err(GpuError::Unsupported("operations that the program does not have".to_owned()));
        }
        if !(1..=MAX_ROWS).contains(&options.max_rows) {
            return Err(GpuError::Unsupported(format!("{} rows in a submission", options.max_rows)));
        }
        if !matches!(options.kv, KvDtype::F32 | KvDtype::F16) {
            return Err(GpuError::Unsupported(format!("a cache of {} (f32 and f16 are possible)", options.kv.name())));
        }
        let budget = Budget::of(options.budget, gpu.memory(), gpu.caps());
        budget.check(Need::of(&program, &*weights, &options, parts)?)?;
        let state = DeviceState::new(&gpu, &program.states, options.limits, options.kv)?;
        let step_layout = StepLayout::new(&program, &state, FIRST_ROWS);
        let buffers = Buffers {
            slots: Slots::new(&gpu, &program, FIRST_ROWS)?,
            step: gpu.buffer("step", step_layout.bytes())?,
            step_layout,
            head: Head::new(&gpu, program.hidden_size, program.vocab_size, HEAD_ROWS)?,
            logits: gpu.readback((HEAD_ROWS * program.vocab_size * 4) as u64)?,
            crossing: None,
        };
        let mut executor = Self {
            gpu,
            kernels: Kernels::default(),
            program,
            weights: DeviceWeights::new(weights),
            state,
            buffers,
            scratch: Scratch::new(),
            plans: Plans::default(),
            options,
            writer: StepWriter::default(),
            pace: Pace::default(),
            trunk: HiddenRows::default(),
            drafted: HiddenRows::default(),
            wanted: Wanted::Top(1),
            logits: Vec::new(),
            top: TopRows::default(),
            crossed: Vec::new(),
            profiler: None,
        };
        for part in parts {
            executor.plan(&Stage::Trunk(part.clone()), Class::One)?;
            if executor.has_head(&Stage::Trunk(part.clone())) {
                executor.plan_head(HeadOf::Trunk, Class::One)?;
            }
        }
        executor.wanted = Wanted::Logits;
        executor.gpu.wait()?;
        Ok(executor)
    }

    /// The device.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Texts of all shaders so far.
    #[cfg(feature = "lab")]
    #[doc(hidden)]
    pub fn shader_texts(&self) -> Vec<String> {
        self.kernels.texts()
    }

    /// Dispatches that decoding one token takes, head and choice of the best token included.
    pub fn dispatches_per_token(&self) -> usize {
        let bodies = self.plans.bodies.iter().filter(|(key, _)| key.0 != Stage::Draft && key.1 == Class::One);
        let head = self.plans.heads.get(&(HeadOf::Trunk, Class::One)).map_or(0, Vec::len);
        let choice = self.plans.tops.get(&1).map_or(0, |top| top.dispatches.len());
        bodies.map(|(_, dispatches)| dispatches.len()).sum::<usize>() + head + choice
    }

    /// The list that a stage is of, and its place there.
    fn ops(&self, stage: &Stage) -> Result<(&[Op], Range<usize>), ModelError> {
        match stage {
            Stage::Trunk(part) => Ok((&self.program.ops, part.clone())),
            Stage::Draft => {
                let ops = &self.program.draft.as_ref().ok_or(ModelError::NoPredictionHead)?.ops;
                Ok((ops, 0..ops.len()))
            }
        }
    }

    /// Whether a stage ends with logits.
    fn has_head(&self, stage: &Stage) -> bool {
        match stage {
            Stage::Trunk(part) => self.program.ends_with_head(part),
            Stage::Draft => true,
        }
    }

    /// Records what a stage needs for batches of this class and is not there yet.
    fn plan(&mut self, stage: &Stage, class: Class) -> Result<(), GpuError> {
        if !self.plans.bodies.contains_key(&(stage.clone(), class)) {
            let (ops, part) = self.ops(stage)?;
            let ops = ops.to_vec();
            let recorded = Recorder::new(self.parts(), class).record(&ops, part)?;
            self.plans.bodies.insert((stage.clone(), class), recorded);
        }
        Ok(())
    }

    /// Records a head for so many rows of logits, and the choice that the present step makes from them, if they are not
    /// there yet.
    fn plan_head(&mut self, of: HeadOf, class: Class) -> Result<(), GpuError> {
        if !self.plans.heads.contains_key(&(of, class)) {
            let op = self.head_op(of)?;
            let buffers = Head { input: self.buffers.head.input.clone(), logits: self.buffers.head.logits.clone() };
            let recorded = ops::head(Recorder::new(self.parts(), class), &op, &buffers, HEAD_ROWS)?;
            self.plans.heads.insert((of, class), recorded);
        }
        if let Some(size) = self.top_size()
            && !self.plans.tops.contains_key(&size)
        {
            let (logits, slice) = (self.buffers.head.logits.clone(), top_slice(self.gpu.caps()));
            let recorded = Top::record(Recorder::new(self.parts(), class), &logits, size, HEAD_ROWS, slice)?;
            self.plans.tops.insert(size, recorded);
        }
        Ok(())
    }

    /// Size of the choice that the present step makes, if any.
    fn top_size(&self) -> Option<usize> {
        match self.wanted {
            Wanted::Logits => None,
            Wanted::Top(count) => top_size(count),
        }
    }

    fn head_op(&self, of: HeadOf) -> Result<HeadOp, ModelError> {
        let ops = match of {
            HeadOf::Trunk => &self.program.ops,
            HeadOf::Draft => &self.program.draft.as_ref().ok_or(ModelError::NoPredictionHead)?.ops,
        };
        let found = ops.iter().find_map(|op| match op {
            Op::Head(head) => Some(*head),
            _ => None,
        });
        found.ok_or_else(|| ModelError::Unsupported("a program without a head".to_owned()))
    }

    fn parts(&mut self) -> Parts<'_> {
        Parts {
            gpu: &self.gpu,
            kernels: &self.kernels,
            program: &self.program,
            slots: &self.buffers.slots,
            state: &self.state,
            step: &self.buffers.step,
            step_layout: self.buffers.step_layout,
            weights: &mut self.weights,
            scratch: &mut self.scratch,
            precision: self.options.precision,
        }
    }

    /// Forgets logits and hidden states of a step that failed half-way.
    fn forget_results(&mut self) {
        self.logits.clear();
        self.trunk.rows.clear();
        self.drafted.rows.clear();
    }

    /// Drops what was recorded for buffers that are gone.
    fn forget_plans(&mut self) {
        self.plans = Plans::default();
    }

    /// Makes buffers large enough for a batch of `rows` rows.
    fn fit_rows(&mut self, rows: usize) -> Result<(), GpuError> {
        if rows > self.buffers.slots.rows() {
            let rows = self.options.max_rows.max(rows).next_multiple_of(FIRST_ROWS);
            // All of it or nothing: recorded dispatches rely on sizes that belong together.
            let slots = Slots::new(&self.gpu, &self.program, rows)?;
            let step_layout = StepLayout::new(&self.program, &self.state, rows);
            self.buffers.step = self.gpu.buffer("step", step_layout.bytes())?;
            (self.buffers.slots, self.buffers.step_layout) = (slots, step_layout);
            self.scratch.clear();
            self.forget_plans();
        }
        Ok(())
    }

    /// Runs a stage for a batch whose state is there, and appends its logits if the stage has a head; else copies
    /// `outputs` to where the host can read them.
    fn run(
        &mut self,
        stage: &Stage,
        batch: &Batch<'_>,
        source: Option<HiddenSource<'_>>,
        outputs: &[Slot],
    ) -> Result<(), GpuError> {
        self.fit_rows(batch.tokens.len())?;
        if self.state.fit(&self.gpu)? {
            self.forget_plans();
        }
        let chunks: Vec<&[usize]> = batch.logit_rows.chunks(HEAD_ROWS).collect();
        let first = Batch { logit_rows: chunks.first().copied().unwrap_or_default(), ..*batch };
        let size = self.upload(&first)?;
        let body = Class::of(batch.tokens.len());
        self.plan(stage, body)?;
        let mut encoder = self.gpu.encoder("step");
        self.state.encode_pending(&mut encoder);
        if let Some(source) = source {
            source.copy_to(&mut encoder, &self.buffers.slots);
        }
        let mut dispatches = self.plans.bodies[&(stage.clone(), body)].as_slice();
        // Short steps need no pace: the longest dispatch of 16 rows reads the largest matrix once.
        let paced = body == Class::Many;
        let mut queued = paced.then(Queued::new);
        let together = |pace: &Pace| if paced { pace.together() } else { pace::MOST };
        while let Some((part, rest)) = dispatches.split_at_checked(together(&self.pace)) {
            encode(&mut encoder, part, &size, self.profiler.as_mut());
            let submitted = submit(&self.gpu, self.profiler.as_mut(), encoder)?;
            self.state.finish_pending();
            if let Some(queued) = &mut queued {
                queued.push(&self.gpu, &mut self.pace, submitted)?;
            }
            encoder = self.gpu.encoder("step");
            dispatches = rest;
        }
        encode(&mut encoder, dispatches, &size, self.profiler.as_mut());
        if !self.has_head(stage) {
            return self.hand_over(encoder, outputs, batch.tokens.len());
        }
        let of = if *stage == Stage::Draft { HeadOf::Draft } else { HeadOf::Trunk };
        self.head(of, encoder, &size)?;
        for chunk in chunks.iter().skip(1) {
            let size = self.upload(&Batch { logit_rows: chunk, ..*batch })?;
            let encoder = self.gpu.encoder("logits");
            self.head(of, encoder, &size)?;
        }
        Ok(())
    }

    /// Encodes the head for the rows of the last upload, submits and reads back what is wanted of the logits.
    fn head(&mut self, of: HeadOf, mut encoder: wgpu::CommandEncoder, size: &StepSize) -> Result<(), GpuError> {
        let rows = size.logit_rows as usize;
        if rows == 0 {
            submit(&self.gpu, self.profiler.as_mut(), encoder)?;
            self.state.finish_pending();
            // Nothing is waited for here, so that only this tells of a device that is gone.
            return self.gpu.poll();
        }
        self.plan_head(of, Class::of(rows))?;
        encode(&mut encoder, &self.plans.heads[&(of, Class::of(rows))], size, self.profiler.as_mut());
        if let Some(top) = self.top_size().and_then(|size| self.plans.tops.get_mut(&size)) {
            encode(&mut encoder, &top.dispatches, size, self.profiler.as_mut());
            top.copy(&mut encoder, rows);
            submit(&self.gpu, self.profiler.as_mut(), encoder)?;
            self.state.finish_pending();
            return top.read(&self.gpu, rows, &mut self.top);
        }
        let words = rows * self.program.vocab_size;
        let bytes = (words * 4) as u64;
        encoder.copy_buffer_to_buffer(&self.buffers.head.logits.buffer, 0, &self.buffers.logits, 0, bytes);
        submit(&self.gpu, self.profiler.as_mut(), encoder)?;
        self.state.finish_pending();
        self.gpu.read_more(&self.buffers.logits, words, &mut self.logits)
    }

    /// Writes the step's words.
    fn upload(&mut self, batch: &Batch<'_>) -> Result<StepSize, GpuError> {
        let Buffers { step, step_layout, .. } = &self.buffers;
        self.writer.write(&self.gpu, step, step_layout, &self.program, &self.state, batch)
    }

    /// Runs a whole batch in pieces of at most `max_rows` rows.
    fn run_in_pieces(&mut self, batch: &Batch<'_>) -> Result<(), GpuError> {
        self.prepare_trunk(batch)?;
        let mut at = 0;
        while at < batch.tokens.len() {
            let piece = Piece::cut(batch, at, self.options.max_rows);
            let tokens = &batch.tokens[at..at + piece.rows];
            let part = Batch { tokens, spans: &piece.spans, logit_rows: &piece.logit_rows };
            self.run(&Stage::Trunk(0..self.program.ops.len()), &part, None, &[])?;
            self.keep_trunk(at, piece.rows)?;
            at += piece.rows;
        }
        Ok(())
    }

    /// Makes room for the hidden states of a batch, where a draft may continue them.
    fn prepare_trunk(&mut self, batch: &Batch<'_>) -> Result<(), GpuError> {
        let stride = self.buffers.slots.stride(self.program.final_hidden);
        if self.program.draft.is_some() { self.trunk.prepare(&self.gpu, batch.rows(), stride) } else { Ok(()) }
    }

    /// Keeps the hidden states of the rows that ran last, as those of the batch from row `at` on.
    fn keep_trunk(&mut self, at: usize, rows: usize) -> Result<(), GpuError> {
        match self.program.draft {
            Some(_) => self.keep_rows(self.program.final_hidden, HeadOf::Trunk, at, rows),
            None => Ok(()),
        }
    }

    /// Makes the blocks that a batch writes its sequences' own.
    fn own(&mut self, batch: &Batch<'_>) -> Result<(), GpuError> {
        let own = |span: &Span| self.state.own(span.sequence, span.start, span.start + span.len);
        Ok(batch.spans.iter().try_for_each(own)?)
    }

    /// Copies rows of a slot to the hidden states that a head left, from row `at` on.
    fn keep_rows(&mut self, slot: Slot, of: HeadOf, at: usize, rows: usize) -> Result<(), GpuError> {
        let kept = match of {
            HeadOf::Trunk => &self.trunk,
            HeadOf::Draft => &self.drafted,
        };
        let Some(buffer) = &kept.buffer else { return Ok(()) };
        let row_bytes = (self.buffers.slots.stride(slot) * 4) as u64;
        let mut encoder = self.gpu.encoder("keep");
        let (to, bytes) = (at as u64 * row_bytes, rows as u64 * row_bytes);
        encoder.copy_buffer_to_buffer(self.buffers.slots.buffer(slot), 0, buffer, to, bytes);
        self.gpu.submit(encoder.finish())
    }

    /// Runs `work`, which computes logits, so that it brings back the best tokens alone.
    fn top(
        &mut self,
        count: usize,
        out: &mut TopRows,
        work: impl FnOnce(&mut Self) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let vocab_size = self.program.vocab_size;
        if top_size(count).is_none() {
            work(self)?;
            out.fill(count, vocab_size, &self.logits);
            return Ok(());
        }
        self.top.reset(count, vocab_size);
        self.wanted = Wanted::Top(count);
        let done = work(self);
        self.wanted = Wanted::Logits;
        std::mem::swap(out, &mut self.top);
        done
    }

    fn run_draft(&mut self, input: &DraftInput<'_>) -> Result<(), GpuError> {
        let draft = self.program.draft.as_ref().ok_or(ModelError::NoPredictionHead)?;
        let (hidden, output) = (draft.hidden, draft.output);
        let source = match input.source {
            DraftSource::Step => &self.trunk,
            DraftSource::Draft => &self.drafted,
        };
        let rows = input.place(&source.rows)?;
        input.check_tokens(self.program.vocab_size)?;
        let from =
            source.buffer.clone().ok_or_else(|| ModelError::Batch("no hidden states to draft from".to_owned()))?;
        for row in &rows {
            self.state.own(row.sequence, row.position, row.position + 1)?;
        }
        self.fit_rows(rows.len())?;
        let stride = self.buffers.slots.stride(hidden);
        let spans = Span::around(&rows);
        let batch = Batch { tokens: input.next, spans: &spans, logit_rows: input.logit_rows };
        // The last draft's states may be the source: they are copied into the slot before they are replaced.
        let source = HiddenSource { buffer: &from, rows: input.rows, slot: hidden };
        self.run(&Stage::Draft, &batch, Some(source), &[])?;
        self.drafted.prepare(&self.gpu, rows.into_iter(), stride)?;
        self.keep_rows(output, HeadOf::Draft, 0, input.rows.len())
    }
}

impl HiddenRows {
    /// A buffer for the hidden states of `rows`.
    fn prepare(&mut self, gpu: &Gpu, rows: impl Iterator<Item = Row>, stride: usize) -> Result<(), GpuError> {
        self.rows.clear();
        self.rows.extend(rows);
        let bytes = (self.rows.len() * stride * 4) as u64;
        if self.buffer.as_ref().is_none_or(|buffer| buffer.size() < bytes) {
            self.buffer = Some(gpu.buffer("hidden", bytes.next_power_of_two())?);
        }
        Ok(())
    }
}

/// Hidden states that go into a slot before a draft.
struct HiddenSource<'a> {
    buffer: &'a wgpu::Buffer,
    rows: &'a [usize],
    slot: Slot,
}

impl HiddenSource<'_> {
    /// Encodes the copies, neighbouring rows together.
    fn copy_to(&self, encoder: &mut wgpu::CommandEncoder, slots: &Slots) {
        let row_bytes = (slots.stride(self.slot) * 4) as u64;
        let mut to = 0u64;
        for run in self.rows.chunk_by(|a, b| a + 1 == *b) {
            let (from, bytes) = (run[0] as u64 * row_bytes, run.len() as u64 * row_bytes);
            encoder.copy_buffer_to_buffer(self.buffer, from, slots.buffer(self.slot), to, bytes);
            to += bytes;
        }
    }
}

/// Rows of a batch that run together.
struct Piece {
    rows: usize,
    spans: Vec<Span>,
    logit_rows: Vec<usize>,
}

impl Piece {
    /// At most `max_rows` rows from row `at` on.
    fn cut(batch: &Batch<'_>, at: usize, max_rows: usize) -> Self {
        let end = (at + max_rows).min(batch.tokens.len());
        let mut spans = Vec::new();
        for (first, span) in batch.first_rows() {
            let (from, to) = (first.max(at), (first + span.len).min(end));
            if from < to {
                let known_len = span.known_len.max(span.start + span.len);
                spans.push(Span { start: span.start + from - first, len: to - from, known_len, ..*span });
            }
        }
        let logit_rows = batch.logit_rows.iter().filter(|&&row| (at..end).contains(&row)).map(|row| row - at).collect();
        Self { rows: end - at, spans, logit_rows }
    }
}

/// Submits, and collects times where dispatches are timed.
fn submit(
    gpu: &Gpu,
    profiler: Option<&mut Profiler>,
    mut encoder: wgpu::CommandEncoder,
) -> Result<wgpu::SubmissionIndex, GpuError> {
    if let Some(profiler) = &profiler {
        profiler.resolve(&mut encoder);
    }
    let submitted = gpu.queue.submit([encoder.finish()]);
    gpu.check()?;
    profiler.map_or(Ok(()), |profiler| profiler.collect(gpu))?;
    Ok(submitted)
}

/// Encodes recorded dispatches as one pass, or one by one when they are timed.
fn encode(
    encoder: &mut wgpu::CommandEncoder,
    dispatches: &[Dispatch],
    size: &StepSize,
    profiler: Option<&mut Profiler>,
) {
    if let Some(profiler) = profiler {
        return profiler.encode(encoder, dispatches, size);
    }
    let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor { label: None, timestamp_writes: None });
    dispatches.iter().for_each(|dispatch| dispatch.encode(&mut pass, size));
}

impl Executor for GpuExecutor {
    fn name(&self) -> &'static str {
        "gpu"
    }

    fn prefill_chunk(&self) -> usize {
        self.options.max_rows
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn states(&mut self) -> &mut dyn SequenceState {
        &mut self.state
    }

    fn state(&self) -> &dyn SequenceState {
        &self.state
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError> {
        batch.validate(self.program.vocab_size, &self.state)?;
        batch.append_to(&mut self.state)?;
        self.logits.clear();
        if let Err(error) = self.own(batch).and_then(|()| self.run_in_pieces(batch)) {
            self.forget_results();
            batch.retract_from(&mut self.state)?;
            return Err(error.into());
        }
        Ok(&self.logits)
    }

    fn draft(&mut self, input: &DraftInput<'_>) -> Result<&[f32], ModelError> {
        self.logits.clear();
        if let Err(error) = self.run_draft(input) {
            self.forget_results();
            return Err(error.into());
        }
        Ok(&self.logits)
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }

    fn step_top(&mut self, batch: &Batch<'_>, count: usize, out: &mut TopRows) -> Result<(), ModelError> {
        self.top(count, out, |executor| executor.step(batch).map(|_| ()))
    }

    fn draft_top(&mut self, input: &DraftInput<'_>, count: usize, out: &mut TopRows) -> Result<(), ModelError> {
        self.top(count, out, |executor| executor.draft(input).map(|_| ()))
    }

    fn start_profile(&mut self) -> Result<(), ModelError> {
        self.profiler = Some(Profiler::new(&self.gpu)?);
        Ok(())
    }

    fn end_profile(&mut self) -> Vec<KernelTime> {
        self.profiler.take().map(|profiler| profiler.times()).unwrap_or_default()
    }
}
