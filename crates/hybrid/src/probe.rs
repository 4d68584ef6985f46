//! The probe: both sides run a part of the model each, timed, before the placement is chosen.
//!
//! The rule (docs/behaviour.md §9.4): the sides take turns on the same work; what is uploaded, grown or compiled is done
//! before the first sample. With two samples of each, a class is decided as soon as one mean is three times the other;
//! else after six.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use cortiq_cpu::CpuExecutor;
use cortiq_gpu::{Gpu, GpuExecutor, GpuOptions};
use cortiq_model::{
    Batch, Executor, MatrixId, ModelError, Op, Part, PartExecutor, Program, SequenceId, Slot, Span, StateLimits,
    Weights,
};

use crate::executor::{ArmOptions, Placements};
use crate::{HybridError, Placement, Side};

/// Whether both sides are measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Probe {
    /// The faster side gets the work.
    #[default]
    Measure,
    /// The GPU is trusted.
    Trust,
}

/// Rows of a prompt that are timed.
const PROMPT_ROWS: usize = 64;

/// What the choice is made for: tokens of a prompt and of an answer.
const PROMPT: f64 = 512.0;
const ANSWER: f64 = 128.0;

const FEWEST_SAMPLES: usize = 2;
const MOST_SAMPLES: usize = 6;
const CLEAR: f64 = 3.0;

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Work {
    /// All of a layer but its FFN.
    Mixer,
    /// The FFN or the experts of a layer.
    Ffn,
    /// The final norm and the logits of one row.
    Head,
}

impl Work {
    fn name(self) -> &'static str {
        match self {
            Self::Mixer => "mixer",
            Self::Ffn => "FFN",
            Self::Head => "head",
        }
    }
}

/// Mean times of one piece of work.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// What was timed.
    pub name: &'static str,
    /// First layer of its kind; none for the head.
    pub layer: Option<usize>,
    /// Rows of the batch.
    pub rows: usize,
    /// Seconds on the CPU.
    pub cpu: f64,
    /// Seconds on the GPU, without the way there and back.
    pub gpu: f64,
}

/// What the probe found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ProbeReport {
    /// Everything that was timed.
    pub timings: Vec<Timing>,
    /// Seconds from a submission until the host has its rows.
    pub latency: f64,
}

/// What makes the times of two operations the same: the kind, and the matrices' shapes and types.
type Signature = Vec<(std::mem::Discriminant<Op>, Vec<(usize, usize, u8)>)>;

fn signature(program: &Program, ops: Range<usize>) -> Signature {
    let shape = |id: MatrixId| {
        let matrix = &program.matrices[id.0];
        (matrix.rows, matrix.cols, matrix.dtype.id())
    };
    program.ops[ops]
        .iter()
        .map(|op| (std::mem::discriminant(op), op.matrices().into_iter().map(shape).collect()))
        .collect()
}

/// The operations of a layer by kind of work: those before the FFN, and the FFN.
fn split(program: &Program, layer: &Range<usize>) -> (Range<usize>, Range<usize>) {
    let ffn = program.ops[layer.clone()].iter().position(Op::is_ffn).map_or(layer.end, |at| layer.start + at);
    (layer.start..ffn, ffn..(ffn + 1).min(layer.end))
}

/// Times on both sides.
#[derive(Clone, Copy, Debug, Default)]
struct Both {
    cpu: f64,
    gpu: f64,
}

impl Both {
    fn of(&self, side: Side) -> f64 {
        match side {
            Side::Cpu => self.cpu,
            Side::Gpu => self.gpu,
        }
    }
}

/// The times of all kinds of layers, for choosing.
pub(crate) struct Measured {
    /// By layer: (mixer, FFN), for one row and for a prompt's rows.
    layers: Vec<[(Both, Both); 2]>,
    head: [Both; 2],
    pub(crate) report: ProbeReport,
}

impl Measured {
    /// Seconds of a step of one row, or of [`PROMPT_ROWS`]; the host waits once for every part on the GPU.
    fn step(&self, program: &Program, placement: &Placement, times: usize) -> f64 {
        let sides = placement.sides();
        let layer = |(own, layer): (&[(Both, Both); 2], &Range<usize>)| {
            let (mixer, ffn) = split(program, layer);
            let of = |both: &Both, ops: &Range<usize>| sides[ops.clone()].first().map_or(0.0, |side| both.of(*side));
            of(&own[times].0, &mixer) + of(&own[times].1, &ffn)
        };
        let layers: f64 = self.layers.iter().zip(&program.layers).map(layer).sum();
        let waits = placement.gpu_parts().len() as f64 * self.report.latency;
        layers + self.head[times].of(placement.head()) + waits
    }

    /// Seconds for a prompt and an answer.
    pub(crate) fn total(&self, program: &Program, placements: &Placements) -> f64 {
        let prompt = self.step(program, &placements.many, 1) * PROMPT / PROMPT_ROWS as f64;
        prompt + self.step(program, &placements.few, 0) * ANSWER
    }
}

/// One executor and the sequence that its samples run on.
struct Arm<'a> {
    executor: &'a mut dyn PartExecutor,
    sequence: SequenceId,
}

impl Arm<'_> {
    /// Seconds of one run of `part`.
    fn time(&mut self, part: &Part<'_>, rows: usize, slots: &mut [Vec<f32>]) -> Result<f64, ModelError> {
        let span = Span { sequence: self.sequence, start: 0, len: rows, known_len: rows };
        let tokens = vec![0; rows];
        let batch = Batch { tokens: &tokens, spans: &[span], logit_rows: &[rows - 1] };
        batch.append_to(self.executor.states())?;
        let start = Instant::now();
        let done = self.executor.run_part(&batch, part, slots);
        let seconds = start.elapsed().as_secs_f64();
        self.executor.states().truncate(self.sequence, 0)?;
        done.map(|()| seconds)
    }
}

/// The two sides and the rows that cross.
struct Bench<'a> {
    cpu: Arm<'a>,
    gpu: Arm<'a>,
    slots: Vec<Vec<f32>>,
}

impl Bench<'_> {
    /// Rows that look like activations; never zero.
    fn fill(&mut self, program: &Program, rows: usize) {
        for (slot, decl) in self.slots.iter_mut().zip(&program.slots) {
            slot.clear();
            slot.extend((0..rows * decl.width).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0));
        }
    }

    /// Mean times of both sides on `ops`, by the rule above.
    fn sample(&mut self, program: &Program, ops: &Range<usize>, rows: usize) -> Result<Both, ModelError> {
        let inputs = read_first(&program.ops[ops.clone()]);
        let outputs: Vec<Slot> = program.ops[ops.clone()].last().map(Op::writes).unwrap_or_default();
        let part = Part { first: ops.start, end: ops.end, inputs: &inputs, outputs: &outputs };
        self.fill(program, rows);
        // Warm: the first run compiles and grows, the second finds everything in its place.
        for _ in 0..2 {
            self.gpu.time(&part, rows, &mut self.slots)?;
        }
        let mut sum = Both { cpu: 0.0, gpu: 0.0 };
        for samples in 1..=MOST_SAMPLES {
            self.fill(program, rows);
            sum.gpu += self.gpu.time(&part, rows, &mut self.slots)?;
            self.fill(program, rows);
            sum.cpu += self.cpu.time(&part, rows, &mut self.slots)?;
            let clear = sum.cpu > CLEAR * sum.gpu || sum.gpu > CLEAR * sum.cpu;
            if samples >= FEWEST_SAMPLES && clear || samples == MOST_SAMPLES {
                return Ok(Both { cpu: sum.cpu / samples as f64, gpu: sum.gpu / samples as f64 });
            }
        }
        Ok(sum)
    }
}

/// Slots that `ops` read before they write them.
fn read_first(ops: &[Op]) -> Vec<Slot> {
    let (mut written, mut inputs) = (Vec::new(), Vec::new());
    for op in ops {
        inputs.extend(op.reads().into_iter().filter(|slot| !written.contains(slot)));
        written.extend(op.writes());
    }
    inputs.sort_unstable_by_key(|slot: &Slot| slot.0);
    inputs.dedup();
    inputs
}

/// Times, on both sides, every kind of work that `widest` gives the GPU: what it leaves to the CPU stays there whatever
/// it takes, and counts as nothing.
pub(crate) fn measure(
    gpu: &Arc<Gpu>,
    program: &Program,
    weights: &Arc<dyn Weights>,
    options: &ArmOptions,
    widest: &Placement,
) -> Result<Measured, HybridError> {
    let subject = Subject { gpu, program, weights, options };
    let mut report = ProbeReport { timings: Vec::new(), latency: f64::INFINITY };
    let mut known: HashMap<(Work, Signature), [Both; 2]> = HashMap::new();
    let mut time = |work: Work, layer: Option<usize>, ops: Range<usize>| -> Result<[Both; 2], HybridError> {
        if widest.sides()[ops.clone()].first() != Some(&Side::Gpu) {
            return Ok(Default::default());
        }
        match known.entry((work, signature(program, ops.clone()))) {
            Entry::Occupied(found) => Ok(*found.get()),
            Entry::Vacant(kind) => Ok(*kind.insert(subject.measure(work, layer, &ops, &mut report)?)),
        }
    };
    let mut layers = Vec::new();
    for (index, layer) in program.layers.iter().enumerate() {
        let (mixer, ffn) = split(program, layer);
        let (mixer, ffn) = (time(Work::Mixer, Some(index), mixer)?, time(Work::Ffn, Some(index), ffn)?);
        layers.push([(mixer[0], ffn[0]), (mixer[1], ffn[1])]);
    }
    let head = time(Work::Head, None, behind_layers(program)..program.ops.len())?;
    Ok(Measured { layers, head, report })
}

/// First operation behind the layers.
fn behind_layers(program: &Program) -> usize {
    program.layers.last().map_or(0, |layer| layer.end)
}

/// What is measured.
struct Subject<'a> {
    gpu: &'a Arc<Gpu>,
    program: &'a Program,
    weights: &'a Arc<dyn Weights>,
    options: &'a ArmOptions,
}

impl Subject<'_> {
    /// Times of some work, for one row and for a prompt's, on executors that hold nothing else.
    fn measure(
        &self,
        work: Work,
        layer: Option<usize>,
        ops: &Range<usize>,
        report: &mut ProbeReport,
    ) -> Result<[Both; 2], HybridError> {
        let norm = behind_layers(self.program);
        let parts = [ops.clone(), norm..norm + 1];
        let program = Program { draft: None, ..self.program.clone() };
        let program = program.with_states_of(self.program.ops[ops.clone()].iter());
        let limits = StateLimits { max_positions: PROMPT_ROWS, ..self.options.cpu_limits };
        let on_device = GpuOptions { limits, max_rows: PROMPT_ROWS, ..self.options.gpu };
        let (gpu, weights) = (Arc::clone(self.gpu), Arc::clone(self.weights));
        let mut on_gpu = GpuExecutor::of_parts(gpu, program.clone(), Arc::clone(&weights), on_device, &parts)?;
        let mut on_cpu = CpuExecutor::new(program.clone(), weights, limits, self.options.cpu)?;
        let (cpu_sequence, gpu_sequence) = (on_cpu.states().open()?, on_gpu.states().open()?);
        let mut bench = Bench {
            cpu: Arm { executor: &mut on_cpu, sequence: cpu_sequence },
            gpu: Arm { executor: &mut on_gpu, sequence: gpu_sequence },
            slots: vec![Vec::new(); program.slots.len()],
        };
        report.latency = report.latency.min(latency(&mut bench, &program)?);
        let mut times = [Both::default(); 2];
        for (both, rows) in times.iter_mut().zip([1, PROMPT_ROWS]) {
            let sampled = bench.sample(&program, ops, rows)?;
            *both = Both { cpu: sampled.cpu, gpu: (sampled.gpu - report.latency).max(0.0) };
            let Both { cpu, gpu } = *both;
            report.timings.push(Timing { name: work.name(), layer, rows, cpu, gpu });
        }
        Ok(times)
    }
}

/// Seconds of a submission that does next to nothing and whose row the host waits for: the final norm of one row.
fn latency(bench: &mut Bench<'_>, program: &Program) -> Result<f64, ModelError> {
    let norm = behind_layers(program);
    let Some(Op::Norm { input, out, .. }) = program.ops.get(norm) else { return Ok(0.0) };
    let (inputs, outputs) = ([*input], [*out]);
    let part = Part { first: norm, end: norm + 1, inputs: &inputs, outputs: &outputs };
    bench.fill(program, 1);
    let mut least = f64::INFINITY;
    for _ in 0..8 {
        least = least.min(bench.gpu.time(&part, 1, &mut bench.slots)?);
    }
    Ok(least)
}
