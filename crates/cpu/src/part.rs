//! Parts of a step, for compositions of executors.

use cortiq_model::{Batch, ModelError, Part, PartExecutor};

use crate::executor::CpuExecutor;

impl PartExecutor for CpuExecutor {
    fn run_part(&mut self, batch: &Batch<'_>, part: &Part<'_>, slots: &mut [Vec<f32>]) -> Result<(), ModelError> {
        let Self { model, run, trunk, .. } = self;
        let program = &model.program;
        if part.first > part.end || part.end > program.ops.len() {
            return Err(ModelError::Batch(format!("the program has no operations {:?}", part.range())));
        }
        run.prepare(program, batch);
        for &slot in part.inputs {
            let (own, other) = (&mut run.slots[slot.0], slots.get(slot.0).map(Vec::as_slice).unwrap_or_default());
            if own.len() != other.len() {
                let reason = format!("the rows of slot {} are not those of the batch", slot.0);
                return Err(ModelError::Batch(reason));
            }
            own.copy_from_slice(other);
        }
        run.ops(model, &program.ops, part.range(), batch)?;
        for &slot in part.outputs {
            slots[slot.0].clone_from(&run.slots[slot.0]);
        }
        if program.ends_with_head(&part.range()) && program.draft.is_some() {
            trunk.keep(&run.slots[program.final_hidden.0], batch);
        }
        Ok(())
    }
}
