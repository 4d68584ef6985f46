//! Opening a model on a GPU: as much of it as fits, is asked for, and is faster there.

use std::sync::Arc;

use cortiq_cpu::CpuExecutor;
use cortiq_gpu::{AdapterChoice, Budget, Gpu, GpuError, GpuExecutor, Need};
use cortiq_model::{Executor, ModelError, Program, Weights};

use crate::executor::{ArmOptions, HybridExecutor, Placements};
use crate::placement::{Sides, named};
use crate::probe::{Measured, measure};
use crate::supervisor::{Sources, Supervisor};
use crate::{CpuExperts, GpuLayers, HybridError, Placement, Probe, ProbeReport, Side};

/// When a model answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Loading {
    /// When it is where it belongs.
    #[default]
    Wait,
    /// At once, on the CPU, while the GPU is loaded; it takes over as soon as no sequence holds anything.
    Background,
}

/// What a GPU is to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuPlan {
    /// Which one.
    pub adapter: AdapterChoice,
    /// Its layers.
    pub layers: GpuLayers,
    /// Experts that stay on the CPU.
    pub experts: CpuExperts,
    /// Whether it must prove itself.
    pub probe: Probe,
    /// Whether the first answer waits for it.
    pub loading: Loading,
}

/// Where a model runs, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct PlacementReport {
    /// Layers of which at least a part is on the GPU when one token is decoded.
    pub gpu_layers: usize,
    /// Layers of the model.
    pub layers: usize,
    /// Where the head is.
    pub head: Side,
    /// Whether everything is on the GPU, in every kind of step.
    pub whole: bool,
    /// What was measured, if anything was.
    pub probe: Option<ProbeReport>,
}

/// A model and where its parts go.
#[derive(Clone)]
pub(crate) struct Placed {
    program: Program,
    weights: Arc<dyn Weights>,
    placements: Placements,
    options: ArmOptions,
}

impl Placed {
    /// Chooses the places by `plan`.
    fn new(
        gpu: &Arc<Gpu>,
        program: Program,
        weights: Arc<dyn Weights>,
        plan: &GpuPlan,
        options: ArmOptions,
    ) -> Result<(Self, PlacementReport), HybridError> {
        let (on_gpu, head) = match &plan.layers {
            GpuLayers::These(ranges) => {
                let on_gpu = named(ranges, program.layers.len())?;
                let head = if on_gpu.iter().all(|gpu| *gpu) { Side::Gpu } else { Side::Cpu };
                (on_gpu, head)
            }
            GpuLayers::Fit => fitting(gpu, &program, &weights, plan, &options)?,
        };
        let widest = Placement::new(&program, &on_gpu, plan.experts, Sides { head, ..Sides::all(Side::Gpu) });
        let measured = match plan.probe {
            Probe::Measure if on_gpu.contains(&true) => Some(measure(gpu, &program, &weights, &options, &widest)?),
            _ => None,
        };
        let placements = choose(&program, &on_gpu, plan.experts, head, measured.as_ref());
        let report = PlacementReport {
            gpu_layers: placements.few.gpu_layers(),
            layers: program.layers.len(),
            head: placements.few.head(),
            whole: placements.are_all(Side::Gpu),
            probe: measured.map(|measured| measured.report),
        };
        Ok((Self { program, weights, placements, options }, report))
    }

    /// The executor that runs it so.
    pub(crate) fn build(&self, gpu: Arc<Gpu>) -> Result<Box<dyn Executor>, HybridError> {
        let (program, weights, options) = (self.program.clone(), Arc::clone(&self.weights), self.options);
        if self.placements.are_all(Side::Cpu) {
            return Ok(self.on_cpu()?);
        }
        if self.placements.are_all(Side::Gpu) {
            return Ok(Box::new(GpuExecutor::new(gpu, program, weights, options.gpu)?));
        }
        Ok(Box::new(HybridExecutor::new(gpu, program, weights, &self.placements, options)?))
    }

    /// Everything on the CPU.
    pub(crate) fn on_cpu(&self) -> Result<Box<dyn Executor>, ModelError> {
        let ArmOptions { cpu, cpu_limits, .. } = self.options;
        let executor = CpuExecutor::new(self.program.clone(), Arc::clone(&self.weights), cpu_limits, cpu)?;
        Ok(Box::new(executor))
    }
}

/// Places `program` by `plan`, prepares it, and guards it against the loss of the device.
///
/// # Errors
/// When there is no such adapter, when a layer is named that does not exist, when what was asked for does not fit, and
/// what the executors say.
pub fn open(
    program: Program,
    weights: Arc<dyn Weights>,
    plan: &GpuPlan,
    options: ArmOptions,
) -> Result<(Supervisor, PlacementReport), HybridError> {
    open_on(Arc::new(Gpu::open(&plan.adapter)?), program, weights, plan, options)
}

/// [`open`] on a device that is open already. If it is lost, another one is opened.
///
/// # Errors
/// As [`open`].
pub fn open_on(
    gpu: Arc<Gpu>,
    program: Program,
    weights: Arc<dyn Weights>,
    plan: &GpuPlan,
    options: ArmOptions,
) -> Result<(Supervisor, PlacementReport), HybridError> {
    let (placed, report) = Placed::new(&gpu, program, weights, plan, options)?;
    let sources = Sources { placed, adapter: plan.adapter.clone() };
    let supervisor = match plan.loading {
        Loading::Wait => Supervisor::new(sources.placed.build(gpu)?, sources),
        Loading::Background => Supervisor::loading(gpu, sources)?,
    };
    Ok((supervisor, report))
}

/// The first layers that fit into the budget, and where the head goes: to the GPU when it fits after all of them.
fn fitting(
    gpu: &Gpu,
    program: &Program,
    weights: &Arc<dyn Weights>,
    plan: &GpuPlan,
    options: &ArmOptions,
) -> Result<(Vec<bool>, Side), HybridError> {
    let count = program.layers.len();
    let budget = Budget::of(options.gpu.budget, gpu.memory(), gpu.caps());
    let placement = |layers: usize, head: Side| {
        let on_gpu: Vec<bool> = (0..count).map(|layer| layer < layers).collect();
        Placement::new(program, &on_gpu, plan.experts, Sides { head, ..Sides::all(Side::Gpu) })
    };
    let need = |placement: &Placement| {
        let placements = Placements { few: placement.clone(), many: placement.clone() };
        let own = placements.program_of(Side::Gpu, program);
        Need::of(&own, &**weights, &options.gpu, &placement.gpu_parts())
    };
    let fits = |need: &Need| budget.bytes.is_none_or(|bytes| need.total() <= bytes);
    if fits(&need(&placement(count, Side::Gpu))?) {
        return Ok((vec![true; count], Side::Gpu));
    }
    // Every layer adds to the need, so that the border can be searched for.
    let (mut fitting, mut beyond) = (0, count + 1);
    while beyond - fitting > 1 {
        let middle = fitting + (beyond - fitting) / 2;
        if fits(&need(&placement(middle, Side::Cpu))?) { fitting = middle } else { beyond = middle }
    }
    if fitting == 0 && plan.probe == Probe::Trust {
        let need = need(&placement(1.min(count), Side::Cpu))?;
        return Err(GpuError::OverBudget { need, budget: budget.bytes.unwrap_or(0), origin: budget.origin }.into());
    }
    Ok(((0..count).map(|layer| layer < fitting).collect(), Side::Cpu))
}

/// The fastest placement by what was measured; everything that may be on the GPU when nothing was.
fn choose(
    program: &Program,
    on_gpu: &[bool],
    experts: CpuExperts,
    head: Side,
    measured: Option<&Measured>,
) -> Placements {
    let place = |sides: Sides| Placement::new(program, on_gpu, experts, sides);
    let trusted = place(Sides { head, ..Sides::all(Side::Gpu) });
    let Some(measured) = measured else { return Placements { few: trusted.clone(), many: trusted } };
    let both = [Side::Gpu, Side::Cpu];
    let heads = if head == Side::Gpu { &both[..] } else { &both[1..] };
    let sides_for =
        |mixer: Side| both.into_iter().flat_map(move |ffn| heads.iter().map(move |&head| Sides { mixer, ffn, head }));
    let mut best: Option<(f64, Placements)> = None;
    for mixer in both {
        for (few, many) in sides_for(mixer).flat_map(|few| sides_for(mixer).map(move |many| (few, many))) {
            if program.draft.is_some() && few.head != many.head {
                continue;
            }
            let placements = Placements { few: place(few), many: place(many) };
            let total = measured.total(program, &placements);
            // The GPU comes first and so wins a tie.
            if best.as_ref().is_none_or(|(least, _)| total < *least) {
                best = Some((total, placements));
            }
        }
    }
    best.map_or_else(|| Placements { few: trusted.clone(), many: trusted }, |(_, placements)| placements)
}
