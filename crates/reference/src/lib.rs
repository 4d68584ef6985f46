//! The reference executor: the oracle that every other executor is compared with.
//!
//! Owns: one short, plain function per operation — f32 values, f64 sums, no SIMD, no threads; a matrix row is
//! dequantised when it is needed. The result for a token never depends on what else is in the batch.
//! Entry point: [`ReferenceExecutor`]. Must not know: files, tokenizers, speed.

mod ops;

use std::sync::Arc;

use cortiq_model::{
    Batch, Executor, MatrixId, ModelError, Op, PagedKv, Program, SequenceState, Slot, StateLimits, Weights,
};
use cortiq_quant::MatrixView;

/// Executes a program in plain loops.
pub struct ReferenceExecutor {
    model: Model,
    state: PagedKv,
    /// One `[tokens, width]` buffer per slot of the program.
    slots: Vec<Vec<f32>>,
    logits: Vec<f32>,
}

/// The parts that stay the same from step to step.
struct Model {
    program: Program,
    weights: Arc<dyn Weights>,
}

impl Model {
    fn matrix(&self, id: MatrixId) -> Result<MatrixView<'_>, ModelError> {
        let decl = &self.program.matrices[id.0];
        MatrixView::new(decl.dtype, self.weights.bytes(decl.tensor)?, decl.rows, decl.cols)
            .map_err(|error| ModelError::Payload { name: decl.name.clone(), reason: error.to_string() })
    }

    fn width(&self, slot: Slot) -> usize {
        self.program.slots[slot.0].width
    }
}

impl ReferenceExecutor {
    /// An executor for `program`, whose tensors are in `weights`. Checks every matrix payload.
    pub fn new(program: Program, weights: Arc<dyn Weights>, limits: StateLimits) -> Result<Self, ModelError> {
        let state = PagedKv::new(program.kv_layers.clone(), limits);
        let slots = vec![Vec::new(); program.slots.len()];
        let model = Model { program, weights };
        for id in 0..model.program.matrices.len() {
            model.matrix(MatrixId(id))?;
        }
        Ok(Self { model, state, slots, logits: Vec::new() })
    }

    fn run(&mut self, batch: &Batch<'_>) -> Result<(), ModelError> {
        for (slot, decl) in self.slots.iter_mut().zip(&self.model.program.slots) {
            slot.clear();
            slot.resize(batch.tokens.len() * decl.width, 0.0);
        }
        let (model, slots) = (&self.model, &mut self.slots);
        for op in &model.program.ops {
            match op {
                Op::Embed { table, scale, out } => ops::embed(model, slots, batch.tokens, *table, *scale, *out)?,
                Op::Norm { input, weight, eps, out } => {
                    ops::norm(model, slots, *input, &model.program.vectors[weight.0], *eps, *out);
                }
                Op::Linear { input, parts } => {
                    for part in parts {
                        ops::linear(model, slots, *input, part)?;
                    }
                }
                Op::QkNormRopeStore(op) => ops::qk_norm_rope_store(model, slots, &mut self.state, batch, op)?,
                Op::Attention(op) => ops::attention(slots, &self.state, batch, op)?,
                Op::GatedFfn(op) => ops::gated_ffn(model, slots, op)?,
                Op::Residual { add, into } => ops::residual(slots, *add, *into),
                Op::Head(op) => ops::head(model, slots, batch.logit_rows, op, &mut self.logits)?,
            }
        }
        Ok(())
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

    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError> {
        batch.validate(self.model.program.vocab_size, &self.state)?;
        batch.append_to(&mut self.state)?;
        if let Err(error) = self.run(batch) {
            batch.retract_from(&mut self.state)?;
            return Err(error);
        }
        Ok(&self.logits)
    }
}
