//! The reference executor: the oracle that every other executor is compared with.
//!
//! Owns: one short, plain function per operation — f32 values, f64 sums, no SIMD, no threads; a matrix row is
//! dequantised when it is needed. The result for a token never depends on what else is in the batch.
//! Entry point: [`ReferenceExecutor`]. Must not know: files, tokenizers, speed.

mod ops;

use std::sync::Arc;

use cortiq_model::{
    Batch, DraftInput, DraftSource, Executor, HostState, KvDtype, MatrixId, ModelError, Op, Program, Row,
    SequenceState, Slot, Span, StateLimits, VectorId, Weights,
};
use cortiq_quant::MatrixView;

/// Sees every operation after it ran, with the content of all slots.
pub type Observer<'a> = &'a mut dyn FnMut(&Op, &[Vec<f32>]);

/// Executes a program in plain loops.
pub struct ReferenceExecutor {
    model: Model,
    state: HostState,
    /// One `[tokens, width]` buffer per slot of the program.
    slots: Vec<Vec<f32>>,
    logits: Vec<f32>,
    /// Hidden states and places of the last step's rows, for drafts of a model that has a prediction head.
    trunk: HiddenRows,
    /// The same of the last draft.
    drafted: HiddenRows,
}

/// Rows that a draft can continue.
#[derive(Default)]
struct HiddenRows {
    states: Vec<f32>,
    rows: Vec<Row>,
}

/// The parts that stay the same from step to step.
struct Model {
    program: Arc<Program>,
    weights: Arc<dyn Weights>,
}

impl Model {
    fn matrix(&self, id: MatrixId) -> Result<MatrixView<'_>, ModelError> {
        let decl = &self.program.matrices[id.0];
        MatrixView::new(decl.dtype, self.weights.bytes(decl.tensor)?, decl.rows, decl.cols)
            .map_err(|error| ModelError::Payload { name: decl.name.clone(), reason: error.to_string() })
    }

    fn vector(&self, id: VectorId) -> &[f32] {
        &self.program.vectors[id.0]
    }

    fn width(&self, slot: Slot) -> usize {
        self.program.slots[slot.0].width
    }
}

impl ReferenceExecutor {
    /// An executor for `program`, whose tensors are in `weights`. Checks every matrix payload.
    pub fn new(program: Program, weights: Arc<dyn Weights>, limits: StateLimits) -> Result<Self, ModelError> {
        Self::with_kv(program, weights, limits, KvDtype::F32)
    }

    /// [`ReferenceExecutor::new`], keeping keys and values as `kv`.
    pub fn with_kv(
        program: Program,
        weights: Arc<dyn Weights>,
        limits: StateLimits,
        kv: KvDtype,
    ) -> Result<Self, ModelError> {
        let state = HostState::new(&program.states, limits, kv);
        let slots = vec![Vec::new(); program.slots.len()];
        let model = Model { program: Arc::new(program), weights };
        for id in 0..model.program.matrices.len() {
            model.matrix(MatrixId(id))?;
        }
        let (trunk, drafted) = (HiddenRows::default(), HiddenRows::default());
        Ok(Self { model, state, slots, logits: Vec::new(), trunk, drafted })
    }

    fn run(&mut self, ops: &[Op], batch: &Batch<'_>, observer: Observer<'_>) -> Result<(), ModelError> {
        let (model, slots, state) = (&self.model, &mut self.slots, &mut self.state);
        for op in ops {
            match op {
                Op::Embed { table, scale, out } => ops::embed(model, slots, batch.tokens, *table, *scale, *out)?,
                Op::Norm { input, weight, eps, out } => ops::norm(model, slots, *input, *weight, *eps, *out),
                Op::Linear { input, parts } => {
                    parts.iter().try_for_each(|part| ops::linear(model, slots, *input, part))?;
                }
                Op::SplitGate { input, q, gate, head_dim } => ops::split_gate(slots, *input, *q, *gate, *head_dim),
                Op::QkNormRopeStore(op) => ops::qk_norm_rope_store(model, slots, state, batch, op)?,
                Op::Attention(op) => ops::attention(model, slots, state, batch, op)?,
                Op::MlaStore(op) => ops::mla_store(model, slots, state, batch, op)?,
                Op::MlaAttention(op) => ops::mla_attention(model, slots, state, batch, op)?,
                Op::GatedDelta(op) => ops::gated_delta(model, slots, state, batch, op)?,
                Op::ShortConv(op) => ops::short_conv(model, slots, state, batch, op)?,
                Op::GatedFfn(op) => ops::gated_ffn(model, slots, op)?,
                Op::Moe(op) => ops::moe(model, slots, op)?,
                Op::Residual { add, into } => ops::residual(slots, *add, *into),
                Op::Concat { first, second, out } => ops::concat(model, slots, *first, *second, *out),
                Op::Scale { slot, factor } => ops::scale(slots, *slot, *factor),
                Op::Head(op) => ops::head(model, slots, batch.logit_rows, op, &mut self.logits)?,
            }
            observer(op, slots);
        }
        Ok(())
    }
}

impl ReferenceExecutor {
    /// [`Executor::step`] that shows `observer` all slots after every operation: for finding the layer in which two
    /// implementations part.
    pub fn step_observed(&mut self, batch: &Batch<'_>, observer: Observer<'_>) -> Result<&[f32], ModelError> {
        batch.validate(self.model.program.vocab_size, &self.state)?;
        batch.append_to(&mut self.state)?;
        self.clear_slots(batch.tokens.len());
        let program = Arc::clone(&self.model.program);
        if let Err(error) = self.run(&program.ops, batch, observer) {
            batch.retract_from(&mut self.state)?;
            return Err(error);
        }
        if program.draft.is_some() {
            self.trunk = self.hidden_rows(program.final_hidden, batch);
        }
        Ok(&self.logits)
    }

    fn clear_slots(&mut self, tokens: usize) {
        for (slot, decl) in self.slots.iter_mut().zip(&self.model.program.slots) {
            slot.clear();
            slot.resize(tokens * decl.width, 0.0);
        }
    }

    fn hidden_rows(&self, slot: Slot, batch: &Batch<'_>) -> HiddenRows {
        HiddenRows { states: self.slots[slot.0].clone(), rows: batch.rows().collect() }
    }
}

impl Executor for ReferenceExecutor {
    fn name(&self) -> &'static str {
        "reference"
    }

    fn program(&self) -> &Program {
        &self.model.program
    }

    fn states(&mut self) -> &mut dyn SequenceState {
        &mut self.state
    }

    fn state(&self) -> &dyn SequenceState {
        &self.state
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError> {
        self.step_observed(batch, &mut |_, _| {})
    }

    fn draft(&mut self, input: &DraftInput<'_>) -> Result<&[f32], ModelError> {
        let program = Arc::clone(&self.model.program);
        let draft = program.draft.as_ref().ok_or(ModelError::NoPredictionHead)?;
        let source = match input.source {
            DraftSource::Step => &self.trunk,
            DraftSource::Draft => &self.drafted,
        };
        let rows = input.place(&source.rows)?;
        let width = program.hidden_size;
        let picked = input.rows.iter().flat_map(|&row| &source.states[row * width..(row + 1) * width]);
        let hidden: Vec<f32> = picked.copied().collect();
        self.clear_slots(rows.len());
        self.slots[draft.hidden.0] = hidden;
        let spans = Span::around(&rows);
        let batch = Batch { tokens: input.next, spans: &spans, logit_rows: input.logit_rows };
        input.check_tokens(program.vocab_size)?;
        self.run(&draft.ops, &batch, &mut |_, _| {})?;
        self.drafted = self.hidden_rows(draft.output, &batch);
        Ok(&self.logits)
    }

    fn logits(&self) -> &[f32] {
        &self.logits
    }
}
