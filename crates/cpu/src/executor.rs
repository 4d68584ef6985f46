//! [`CpuExecutor`]: the loop over the program's operations.

use std::ops::Range;
use std::sync::Arc;

use cortiq_model::{
    Batch, DraftInput, DraftSource, Executor, HostState, KvDtype, MatrixDecl, MatrixId, ModelError, Op, Precision,
    Program, Row, SequenceState, Slot, Span, StateLimits, VectorId, Weights,
};
use cortiq_quant::MatrixView;

use crate::kernels::{InputBits, Inputs, Isa};
use crate::ops;
use crate::pool::{Pool, WorkerPanicked};

/// How the executor uses the machine.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads, the calling one included.
    pub threads: usize,
    /// Kernels to use.
    pub isa: Isa,
    /// How keys and values are kept.
    pub kv: KvDtype,
    /// Whether inputs of quantised matrices are quantised too.
    pub precision: Precision,
    /// How finely, in the fast mode: 8 bits are faster where weights take few bytes, and change the perplexity of a
    /// small model by some thousandths; 16 bits by less than one in ten thousand.
    pub input_bits: InputBits,
}

impl Default for CpuOptions {
    /// All processors that this process may use, the best kernels that they have, keys and values in f32, and the fast
    /// mode.
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            threads,
            isa: Isa::detect(),
            kv: KvDtype::default(),
            precision: Precision::default(),
            input_bits: InputBits::default(),
        }
    }
}

/// Executes a program on the CPU.
pub struct CpuExecutor {
    pub(crate) model: Model,
    pub(crate) run: Run,
    /// Rows of the last step, when the model has a prediction head.
    pub(crate) trunk: HiddenRows,
    /// Rows of the last draft.
    drafted: HiddenRows,
}

/// Rows that a draft can continue.
#[derive(Default)]
pub(crate) struct HiddenRows {
    /// `[rows, hidden_size]`.
    states: Vec<f32>,
    rows: Vec<Row>,
}

impl HiddenRows {
    pub(crate) fn keep(&mut self, states: &[f32], batch: &Batch<'_>) {
        self.states.clear();
        self.states.extend_from_slice(states);
        self.rows.clear();
        self.rows.extend(batch.rows());
    }
}

self_cell::self_cell!(
    /// The weights and, made once, a checked view of every matrix of the program.
    struct Matrices {
        owner: Arc<dyn Weights>,
        #[covariant]
        dependent: Views,
    }
);

type Views<'a> = Vec<MatrixView<'a>>;

/// The parts that stay the same from step to step.
pub(crate) struct Model {
    pub(crate) program: Program,
    matrices: Matrices,
    /// By vector: taps of convolutions as `[kernel, channels]`, nothing for other vectors.
    taps: Vec<Vec<f32>>,
    pub(crate) isa: Isa,
    precision: Precision,
    input_bits: InputBits,
}

/// The parts that a step changes.
pub(crate) struct Run {
    pub(crate) state: HostState,
    pub(crate) slots: Vec<Vec<f32>>,
    /// Cosines and sines of the step, per rope table: `[tokens, pairs]` each.
    pub(crate) angles: Vec<(Vec<f32>, Vec<f32>)>,
    /// Rows of the head's input, gathered.
    pub(crate) head_input: Vec<f32>,
    pub(crate) logits: Vec<f32>,
    /// Latent attention: `[tokens, heads, kv_rank + rope_dim]`.
    pub(crate) latent: Vec<f32>,
    /// Gated delta: a span's queries, keys and values after the convolution, `[tokens, channels]`.
    pub(crate) convolved: Vec<f32>,
    /// One head's interleaved pairs.
    pub(crate) pairs: Vec<f32>,
    pub(crate) moe: ops::MoeBuffers,
    /// Quantised inputs of the current operation.
    pub(crate) inputs: Inputs,
    pub(crate) pool: Pool,
}

impl Model {
    pub(crate) fn matrix(&self, id: MatrixId) -> &MatrixView<'_> {
        &self.matrices.borrow_dependent()[id.0]
    }

    /// Bits of quantised inputs in the fast mode, `least` or more; none in the exact mode, where inputs stay f32.
    pub(crate) fn fast(&self, least: InputBits) -> Option<InputBits> {
        let bits = if least == InputBits::Sixteen { least } else { self.input_bits };
        (self.precision == Precision::Fast).then_some(bits)
    }

    /// Taps of a convolution, `[kernel, channels]`.
    pub(crate) fn taps(&self, id: VectorId) -> &[f32] {
        &self.taps[id.0]
    }

    pub(crate) fn width(&self, slot: Slot) -> usize {
        self.program.slots[slot.0].width
    }
}

impl From<WorkerPanicked> for ModelError {
    fn from(error: WorkerPanicked) -> Self {
        ModelError::Executor(error.to_string())
    }
}

impl CpuExecutor {
    /// An executor for `program`, whose tensors are in `weights`. Checks every matrix payload; copies none.
    pub fn new(
        program: Program,
        weights: Arc<dyn Weights>,
        limits: StateLimits,
        options: CpuOptions,
    ) -> Result<Self, ModelError> {
        let pool = Pool::new(options.threads)
            .map_err(|error| ModelError::Executor(format!("cannot start {} threads: {error}", options.threads)))?;
        let run = Run {
            state: HostState::new(&program.states, limits, options.kv),
            slots: vec![Vec::new(); program.slots.len()],
            angles: vec![(Vec::new(), Vec::new()); program.ropes.len()],
            head_input: Vec::new(),
            logits: Vec::new(),
            latent: Vec::new(),
            convolved: Vec::new(),
            pairs: Vec::new(),
            moe: ops::MoeBuffers::default(),
            inputs: Inputs::default(),
            pool,
        };
        let matrices = Matrices::try_new(weights, |weights| {
            let view = |decl: &MatrixDecl| {
                MatrixView::new(decl.dtype, weights.bytes(decl.tensor)?, decl.rows, decl.cols)
                    .map_err(|error| ModelError::Payload { name: decl.name.clone(), reason: error.to_string() })
            };
            program.matrices.iter().map(view).collect::<Result<Views<'_>, ModelError>>()
        })?;
        let taps = all_taps(&program);
        let CpuOptions { isa, precision, input_bits, .. } = options;
        let model = Model { program, matrices, taps, isa, precision, input_bits };
        Ok(Self { model, run, trunk: HiddenRows::default(), drafted: HiddenRows::default() })
    }

    /// Threads that it works on.
    pub fn threads(&self) -> usize {
        self.run.pool.threads()
    }
}

/// See [`Model::taps`].
fn all_taps(program: &Program) -> Vec<Vec<f32>> {
    let mut taps = vec![Vec::new(); program.vectors.len()];
    for op in &program.ops {
        let (id, kernel) = match op {
            Op::GatedDelta(op) => (op.conv, op.conv_kernel),
            Op::ShortConv(op) => (op.taps, op.kernel),
            _ => continue,
        };
        taps[id.0] = ops::transposed_taps(&program.vectors[id.0], kernel);
    }
    taps
}

impl Run {
    /// Sizes the buffers for a batch; nothing is freed, so repeated steps do not allocate.
    pub(crate) fn prepare(&mut self, program: &Program, batch: &Batch<'_>) {
        for (slot, decl) in self.slots.iter_mut().zip(&program.slots) {
            slot.resize(batch.tokens.len() * decl.width, 0.0);
        }
        for (rope, (cos, sin)) in program.ropes.iter().zip(&mut self.angles) {
            let pairs = rope.pairs();
            cos.resize(batch.tokens.len() * pairs, 0.0);
            sin.resize(batch.tokens.len() * pairs, 0.0);
            for row in batch.rows() {
                let at = row.index * pairs..(row.index + 1) * pairs;
                rope.fill(row.position, row.known_len, &mut cos[at.clone()], &mut sin[at]);
            }
        }
    }

    /// Runs the operations `part` of `ops` after [`Run::prepare`].
    pub(crate) fn ops(
        &mut self,
        model: &Model,
        ops: &[Op],
        part: Range<usize>,
        batch: &Batch<'_>,
    ) -> Result<(), ModelError> {
        for (index, op) in ops.iter().enumerate().take(part.end).skip(part.start) {
            match op {
                Op::Embed { table, scale, out } => ops::embed(model, self, batch.tokens, *table, *scale, *out),
                Op::Norm { input, weight, eps, out } => ops::norm(model, self, *input, *weight, *eps, *out),
                Op::Linear { input, parts } => ops::linear(model, self, *input, parts, least_input_bits(ops, index))?,
                Op::QkNormRopeStore(op) => ops::qk_norm_rope_store(model, self, batch, op)?,
                Op::Attention(op) => ops::attention(model, self, batch, op)?,
                Op::SplitGate { input, q, gate, head_dim } => ops::split_gate(self, *input, *q, *gate, *head_dim),
                Op::MlaStore(op) => ops::mla_store(model, self, batch, op)?,
                Op::MlaAttention(op) => ops::mla_attention(model, self, batch, op)?,
                Op::GatedDelta(op) => ops::gated_delta(model, self, batch, op)?,
                Op::ShortConv(op) => ops::short_conv(model, self, batch, op)?,
                Op::Moe(op) => ops::moe(model, self, op)?,
                Op::Concat { first, second, out } => ops::concat(model, self, *first, *second, *out),
                Op::Scale { slot, factor } => ops::scale(self, *slot, *factor),
                Op::GatedFfn(op) => ops::gated_ffn(model, self, op)?,
                Op::Residual { add, into } => ops::residual(self, *add, *into),
                Op::Head(op) => ops::head(model, self, batch.logit_rows, op)?,
            }
        }
        Ok(())
    }
}

/// Least bits of the quantised inputs of a linear operation. The delta rule adds up what it is given over the whole
/// sequence, so the projections around it take 16.
fn least_input_bits(ops: &[Op], index: usize) -> InputBits {
    let before = index.checked_sub(1).and_then(|before| ops.get(before));
    let delta = |op: Option<&Op>| matches!(op, Some(Op::GatedDelta(_)));
    if delta(before) || delta(ops.get(index + 1)) { InputBits::Sixteen } else { InputBits::Eight }
}

impl Executor for CpuExecutor {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn program(&self) -> &Program {
        &self.model.program
    }

    fn states(&mut self) -> &mut dyn SequenceState {
        &mut self.run.state
    }

    fn state(&self) -> &dyn SequenceState {
        &self.run.state
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError> {
        batch.validate(self.model.program.vocab_size, &self.run.state)?;
        batch.append_to(&mut self.run.state)?;
        let Self { model, run, trunk, .. } = self;
        run.prepare(&model.program, batch);
        if let Err(error) = run.ops(model, &model.program.ops, 0..model.program.ops.len(), batch) {
            batch.retract_from(&mut run.state)?;
            return Err(error);
        }
        if model.program.draft.is_some() {
            trunk.keep(&run.slots[model.program.final_hidden.0], batch);
        }
        Ok(&run.logits)
    }

    fn draft(&mut self, input: &DraftInput<'_>) -> Result<&[f32], ModelError> {
        let Self { model, run, trunk, drafted } = self;
        let draft = model.program.draft.as_ref().ok_or(ModelError::NoPredictionHead)?;
        let source = match input.source {
            DraftSource::Step => &*trunk,
            DraftSource::Draft => &*drafted,
        };
        let rows = input.place(&source.rows)?;
        input.check_tokens(model.program.vocab_size)?;
        let spans = Span::around(&rows);
        let batch = Batch { tokens: input.next, spans: &spans, logit_rows: input.logit_rows };
        run.prepare(&model.program, &batch);
        let width = model.program.hidden_size;
        for (target, &row) in run.slots[draft.hidden.0].chunks_exact_mut(width).zip(input.rows) {
            target.copy_from_slice(&source.states[row * width..(row + 1) * width]);
        }
        run.ops(model, &draft.ops, 0..draft.ops.len(), &batch)?;
        drafted.keep(&run.slots[draft.output.0], &batch);
        Ok(&run.logits)
    }

    fn logits(&self) -> &[f32] {
        &self.run.logits
    }
}
