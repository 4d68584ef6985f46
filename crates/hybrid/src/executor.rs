//! [`HybridExecutor`]: a step as parts that alternate between the sides.

use std::sync::Arc;

use cortiq_cpu::{CpuExecutor, CpuOptions};
use cortiq_gpu::{Gpu, GpuExecutor, GpuOptions};
use cortiq_model::{
    Batch, DraftInput, Executor, KernelTime, ModelError, Part, PartExecutor, Program, SequenceState, StateLimits,
    TopRows, Weights,
};

use crate::arms::Arms;
use crate::cut::{Cut, cut};
use crate::{HybridError, Placement, Side};

/// Most rows of a batch that is placed as decoding is; longer ones are placed as prompts are.
pub(crate) const FEW_ROWS: usize = 16;

/// Placements by the length of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Placements {
    /// For batches of up to [`FEW_ROWS`].
    pub(crate) few: Placement,
    /// For longer ones. What carries state is on the same side in both.
    pub(crate) many: Placement,
}

impl Placements {
    /// Whether `side` runs operation `op` in any batch.
    fn has(&self, side: Side, op: usize) -> bool {
        self.few.sides()[op] == side || self.many.sides()[op] == side
    }

    /// Whether every operation runs on `side` in every batch.
    pub(crate) fn are_all(&self, side: Side) -> bool {
        self.few.is_all(side) && self.many.is_all(side)
    }

    /// The part of `program` that `side` runs: with its state, and with the draft where the head is.
    pub(crate) fn program_of(&self, side: Side, program: &Program) -> Program {
        let mut own = program.clone();
        if self.few.head() != side {
            own.draft = None;
        }
        let trunk = program.ops.iter().enumerate().filter(|(at, _)| self.has(side, *at)).map(|(_, op)| op);
        let drafts = own.draft.as_ref().map_or_else(Vec::new, |draft| draft.ops.clone());
        own.with_states_of(trunk.chain(&drafts))
    }
}

/// How the two executors work.
#[derive(Clone, Copy, Debug)]
pub struct ArmOptions {
    /// The cpu executor's.
    pub cpu: CpuOptions,
    /// Limits on sequence state in host memory.
    pub cpu_limits: StateLimits,
    /// The gpu executor's, its limits on sequence state among them.
    pub gpu: GpuOptions,
}

/// The part of a step that ends with the head.
struct LastPart<'a> {
    executor: &'a mut dyn PartExecutor,
    part: Part<'a>,
    slots: &'a mut [Vec<f32>],
}

/// Executes a program on a CPU and a GPU.
pub struct HybridExecutor {
    program: Program,
    arms: Arms,
    few: Vec<Cut>,
    many: Vec<Cut>,
    /// Rows that cross, by slot.
    slots: Vec<Vec<f32>>,
    /// Who ran the head last.
    head: Side,
}

impl HybridExecutor {
    /// An executor for `program`, whose operations run where `placements` say.
    pub(crate) fn new(
        gpu: Arc<Gpu>,
        program: Program,
        weights: Arc<dyn Weights>,
        placements: &Placements,
        options: ArmOptions,
    ) -> Result<Self, HybridError> {
        check_states(&program, placements)?;
        let few = placements.few.gpu_parts();
        let more = placements.many.gpu_parts().into_iter().filter(|part| !few.contains(part));
        let parts: Vec<_> = few.iter().cloned().chain(more).collect();
        let on_gpu = placements.program_of(Side::Gpu, &program);
        let gpu = GpuExecutor::of_parts(gpu, on_gpu, Arc::clone(&weights), options.gpu, &parts)?;
        let on_cpu = placements.program_of(Side::Cpu, &program);
        let cpu = CpuExecutor::new(on_cpu, weights, options.cpu_limits, options.cpu)?;
        let (few, many) = (cut(&program.ops, &placements.few), cut(&program.ops, &placements.many));
        let slots = vec![Vec::new(); program.slots.len()];
        let head = placements.few.head();
        Ok(Self { program, arms: Arms { cpu, gpu }, few, many, slots, head })
    }

    /// The parts of a step: one after the other, since each needs the one before. `last` runs the one with the head.
    fn run(
        &mut self,
        batch: &Batch<'_>,
        last: impl FnOnce(LastPart<'_>) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let cuts = if batch.tokens.len() <= FEW_ROWS { &self.few } else { &self.many };
        let Some((head, cuts)) = cuts.split_last() else { return Ok(()) };
        for cut in cuts {
            self.arms.get_mut(cut.side).run_part(batch, &cut.part(), &mut self.slots)?;
        }
        self.head = head.side;
        last(LastPart { executor: self.arms.get_mut(head.side), part: head.part(), slots: &mut self.slots })
    }

    /// A whole step around [`HybridExecutor::run`].
    fn step_with(
        &mut self,
        batch: &Batch<'_>,
        last: impl FnOnce(LastPart<'_>) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        batch.validate(self.program.vocab_size, &self.arms)?;
        batch.append_to(&mut self.arms)?;
        if let Err(error) = self.run(batch, last) {
            batch.retract_from(&mut self.arms)?;
            return Err(error);
        }
        Ok(())
    }
}

/// Operations on one state must run on one side, whatever the batch; so must the head and its draft.
fn check_states(program: &Program, placements: &Placements) -> Result<(), HybridError> {
    let mut homes = vec![None; program.states.len()];
    for (at, op) in program.ops.iter().enumerate() {
        let Some(state) = op.state() else { continue };
        for side in [placements.few.sides()[at], placements.many.sides()[at]] {
            if homes[state.0].replace(side).is_some_and(|home| home != side) {
                let reason = format!("state {} on both sides", state.0);
                return Err(ModelError::Unsupported(reason).into());
            }
        }
    }
    if program.draft.is_some() && placements.few.head() != placements.many.head() {
        return Err(ModelError::Unsupported("a prediction head whose trunk's head moves".to_owned()).into());
    }
    Ok(())
}

impl Executor for HybridExecutor {
    fn name(&self) -> &'static str {
        "cpu and gpu"
    }

    fn program(&self) -> &Program {
        &self.program
    }

    fn states(&mut self) -> &mut dyn SequenceState {
        &mut self.arms
    }

    fn state(&self) -> &dyn SequenceState {
        &self.arms
    }

    fn step(&mut self, batch: &Batch<'_>) -> Result<&[f32], ModelError> {
        self.step_with(batch, |last| last.executor.run_part(batch, &last.part, last.slots))?;
        Ok(self.logits())
    }

    fn step_top(&mut self, batch: &Batch<'_>, count: usize, out: &mut TopRows) -> Result<(), ModelError> {
        self.step_with(batch, |last| last.executor.run_part_top(batch, &last.part, last.slots, count, out))
    }

    fn draft_top(&mut self, input: &DraftInput<'_>, count: usize, out: &mut TopRows) -> Result<(), ModelError> {
        self.arms.get_mut(self.head).draft_top(input, count, out)
    }

    fn draft(&mut self, input: &DraftInput<'_>) -> Result<&[f32], ModelError> {
        self.arms.get_mut(self.head).draft(input)
    }

    fn logits(&self) -> &[f32] {
        self.arms.get(self.head).logits()
    }

    fn prefill_chunk(&self) -> usize {
        self.arms.gpu.prefill_chunk()
    }

    /// Times the kernels of the GPU's part.
    fn start_profile(&mut self) -> Result<(), ModelError> {
        self.arms.gpu.start_profile()
    }

    fn end_profile(&mut self) -> Vec<KernelTime> {
        self.arms.gpu.end_profile()
    }
}
