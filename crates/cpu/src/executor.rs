//! [`CpuExecutor`]: the loop over the program's operations.

use std::sync::Arc;

use cortiq_model::{
    Batch, Executor, MatrixDecl, MatrixId, ModelError, Op, PagedKv, Program, SequenceState, Slot, StateLimits, Weights,
};
use cortiq_quant::MatrixView;

use crate::kernels::Isa;
use crate::ops;
use crate::pool::{Pool, WorkerPanicked};

/// How the executor uses the machine.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads, the calling one included.
    pub threads: usize,
    /// Kernels to use.
    pub isa: Isa,
}

impl Default for CpuOptions {
    /// All processors that this process may use, and the best kernels that they have.
    fn default() -> Self {
        Self { threads: std::thread::available_parallelism().map_or(1, usize::from), isa: Isa::detect() }
    }
}

/// Executes a program on the CPU.
pub struct CpuExecutor {
    pub(crate) model: Model,
    pub(crate) run: Run,
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
    pub(crate) isa: Isa,
}

/// The parts that a step changes.
pub(crate) struct Run {
    pub(crate) state: PagedKv,
    pub(crate) slots: Vec<Vec<f32>>,
    /// Cosines and sines of the step, per rope table: `[tokens, pairs]` each.
    pub(crate) angles: Vec<(Vec<f32>, Vec<f32>)>,
    /// Rows of the head's input, gathered.
    pub(crate) head_input: Vec<f32>,
    pub(crate) logits: Vec<f32>,
    pub(crate) pool: Pool,
}

impl Model {
    pub(crate) fn matrix(&self, id: MatrixId) -> &MatrixView<'_> {
        &self.matrices.borrow_dependent()[id.0]
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
            state: PagedKv::new(program.kv_layers.clone(), limits),
            slots: vec![Vec::new(); program.slots.len()],
            angles: vec![(Vec::new(), Vec::new()); program.ropes.len()],
            head_input: Vec::new(),
            logits: Vec::new(),
            pool,
        };
        let matrices = Matrices::try_new(weights, |weights| {
            let view = |decl: &MatrixDecl| {
                MatrixView::new(decl.dtype, weights.bytes(decl.tensor)?, decl.rows, decl.cols)
                    .map_err(|error| ModelError::Payload { name: decl.name.clone(), reason: error.to_string() })
            };
            program.matrices.iter().map(view).collect::<Result<Views<'_>, ModelError>>()
        })?;
        let model = Model { program, matrices, isa: options.isa };
        Ok(Self { model, run })
    }

    /// Threads that it works on.
    pub fn threads(&self) -> usize {
        self.run.pool.threads()
    }
}

impl Run {
    /// Sizes the buffers for a batch; nothing is freed, so repeated steps do not allocate.
    fn prepare(&mut self, program: &Program, batch: &Batch<'_>) {
        for (slot, decl) in self.slots.iter_mut().zip(&program.slots) {
            slot.resize(batch.tokens.len() * decl.width, 0.0);
        }
        for (rope, (cos, sin)) in program.ropes.iter().zip(&mut self.angles) {
            let pairs = rope.inv_freq.len();
            cos.resize(batch.tokens.len() * pairs, 0.0);
            sin.resize(batch.tokens.len() * pairs, 0.0);
            for (row, _, position) in batch.rows() {
                let at = row * pairs..(row + 1) * pairs;
                rope.fill(position, &mut cos[at.clone()], &mut sin[at]);
            }
        }
    }

    fn ops(&mut self, model: &Model, batch: &Batch<'_>) -> Result<(), ModelError> {
        self.prepare(&model.program, batch);
        for op in &model.program.ops {
            match op {
                Op::Embed { table, scale, out } => ops::embed(model, self, batch.tokens, *table, *scale, *out),
                Op::Norm { input, weight, eps, out } => ops::norm(model, self, *input, *weight, *eps, *out),
                Op::Linear { input, parts } => ops::linear(model, self, *input, parts)?,
                Op::QkNormRopeStore(op) => ops::qk_norm_rope_store(model, self, batch, op)?,
                Op::Attention(op) => ops::attention(model, self, batch, op)?,
                Op::GatedFfn(op) => ops::gated_ffn(model, self, op)?,
                Op::Residual { add, into } => ops::residual(self, *add, *into),
                Op::Head(op) => ops::head(model, self, batch.logit_rows, op)?,
            }
        }
        Ok(())
    }
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

    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError> {
        batch.validate(self.model.program.vocab_size, &self.run.state)?;
        batch.append_to(&mut self.run.state)?;
        if let Err(error) = self.run.ops(&self.model, batch) {
            batch.retract_from(&mut self.run.state)?;
            return Err(error);
        }
        Ok(&self.run.logits)
    }
}
