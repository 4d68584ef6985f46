//! Recording: the program's operations as dispatches, once per class of batch size.

mod usage;

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use cortiq_model::{LinearPart, MatrixId, Op, Program, Slot, VectorId, Weights};
use cortiq_quant::MatrixView;

use crate::kernel::{Bind, Dispatch, Kernels, StepSize};
use crate::ops::{self, Codes, FusedInput};
use crate::shader::Source;
use crate::slots::{Slots, padded};
use crate::state::DeviceState;
use crate::step::StepLayout;
use crate::weights::{DeviceMatrix, Layout};
use crate::{Gpu, GpuError, Precision};
use usage::Ahead;

/// Batch sizes that get kernels of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// One token: decoding.
    One,
    /// Two to [`FEW`] tokens: weights are read once per [`Class::tokens`] of them.
    Few,
    /// More: matrix products.
    Many,
}

/// Most tokens of [`Class::Few`].
pub(crate) const FEW: usize = 16;

impl Class {
    /// The class of a batch of `rows`.
    pub(crate) fn of(rows: usize) -> Self {
        match rows {
            0 | 1 => Self::One,
            2..=FEW => Self::Few,
            _ => Self::Many,
        }
    }

    /// Tokens that one pass over a row of weights serves in a matrix-vector kernel.
    pub(crate) fn tokens(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Few | Self::Many => 4,
        }
    }
}

/// Where the tokens of a product are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rows {
    /// All rows of the step.
    Step,
    /// The rows whose logits are wanted.
    Logits,
}

impl Rows {
    /// Their number in a step.
    pub(crate) fn count(self, size: &StepSize) -> u32 {
        match self {
            Self::Step => size.rows,
            Self::Logits => size.logit_rows,
        }
    }
}

/// Weights that have been uploaded, by the matrices that stand in them.
pub(crate) struct DeviceWeights {
    source: Arc<dyn Weights>,
    matrices: HashMap<Vec<MatrixId>, Arc<DeviceMatrix>>,
    vectors: HashMap<VectorId, wgpu::Buffer>,
}

impl DeviceWeights {
    /// Nothing yet.
    pub(crate) fn new(source: Arc<dyn Weights>) -> Self {
        Self { source, matrices: HashMap::new(), vectors: HashMap::new() }
    }
}

/// Buffers between the kernels of one operation, shared by all layers.
pub(crate) type Scratch = HashMap<(&'static str, usize), wgpu::Buffer>;

/// An f32 activation on the device: `[rows, stride]`.
#[derive(Clone)]
pub(crate) struct Activation {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) width: usize,
    pub(crate) stride: usize,
}

/// int8 activations: codes `[sets, codes per value, rows, groups, 8 words]`, and scale and scale times sum
/// `[sets, codes per value, rows, groups]`.
#[derive(Clone)]
pub(crate) struct Quantised {
    pub(crate) codes: wgpu::Buffer,
    pub(crate) scales: wgpu::Buffer,
    /// Rows of a set.
    pub(crate) rows: usize,
    /// Codes per value.
    pub(crate) per_value: Codes,
}

impl Quantised {
    /// Groups from a first code's to the second one's, with `groups` of them in a row.
    pub(crate) fn rest(&self, groups: usize) -> usize {
        self.rows * groups
    }
}

/// Turns operations into dispatches.
pub(crate) struct Recorder<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) kernels: &'a Kernels,
    pub(crate) program: &'a Program,
    pub(crate) slots: &'a Slots,
    pub(crate) state: &'a DeviceState,
    pub(crate) step: &'a wgpu::Buffer,
    pub(crate) step_layout: StepLayout,
    pub(crate) weights: &'a mut DeviceWeights,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) class: Class,
    pub(crate) precision: Precision,
    /// Codes of an int8 activation.
    pub(crate) codes: Codes,
    /// Slots whose int8 copy is up to date.
    fresh: HashSet<Slot>,
    /// A norm that the next operation does for itself.
    deferred: Option<FusedInput>,
    /// Whether a kernel for short contexts was recorded for this layer's attention.
    short: bool,
    recorded: Vec<Dispatch>,
}

/// What a recorder needs, but for the class.
pub(crate) struct Parts<'a> {
    pub(crate) gpu: &'a Gpu,
    pub(crate) kernels: &'a Kernels,
    pub(crate) program: &'a Program,
    pub(crate) slots: &'a Slots,
    pub(crate) state: &'a DeviceState,
    pub(crate) step: &'a wgpu::Buffer,
    pub(crate) step_layout: StepLayout,
    pub(crate) weights: &'a mut DeviceWeights,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) precision: Precision,
}

impl<'a> Recorder<'a> {
    /// A recorder for batches of `class`.
    pub(crate) fn new(parts: Parts<'a>, class: Class) -> Self {
        let Parts { gpu, kernels, program, slots, state, step, step_layout, weights, scratch, precision } = parts;
        let (fresh, deferred, recorded) = (HashSet::new(), None, Vec::new());
        let codes = Codes::of(program, precision);
        Self {
            gpu,
            kernels,
            program,
            slots,
            state,
            step,
            step_layout,
            weights,
            scratch,
            class,
            precision,
            codes,
            fresh,
            deferred,
            short: false,
            recorded,
        }
    }

    /// Records the operations `part` of `ops`; heads are left to [`ops::head`].
    pub(crate) fn record(mut self, ops: &[Op], part: Range<usize>) -> Result<Vec<Dispatch>, GpuError> {
        let mut at = part.start;
        while at < part.end {
            let op = &ops[at];
            let ahead = Ahead::of(ops, at, part.end);
            let into = usage::residual_after(op, ahead);
            self.op(op, ahead, into)?;
            op.writes().into_iter().filter(|slot| !usage::is_norm_of(op, *slot)).for_each(|slot| {
                self.fresh.remove(&slot);
            });
            if let Some(into) = into {
                self.fresh.remove(&into);
            }
            at += if into.is_some() { 2 } else { 1 };
        }
        Ok(self.recorded)
    }

    /// Records one operation. `into` is the slot that the following residual adds to, if its product may do that.
    fn op(&mut self, op: &Op, ahead: Ahead<'_>, into: Option<Slot>) -> Result<(), GpuError> {
        match op {
            Op::Embed { table, scale, out } => ops::embed(self, *table, *scale, *out),
            Op::Norm { input, weight, eps, out } => {
                self.fresh.remove(out);
                if self.can_defer(ahead, *out) {
                    self.deferred = Some(FusedInput { x: self.activation(*input), norm: Some((*weight, *eps)) });
                    return Ok(());
                }
                let packs = usage::reads_as_input(ahead.rest, *out, |parts| self.wants_int8(parts));
                let copy = if packs { Some(self.packed_by_kernel(*out)?) } else { None };
                ops::norm(self, *input, *weight, *eps, *out, copy.as_ref())
            }
            Op::Linear { input, parts } => match self.fused_input(*input, parts) {
                Some(input) if ops::takes_mixed(self, parts) => ops::mixed_linear(self, &input, parts),
                Some(input) => ops::fused_linear(self, &input, parts, into),
                None => ops::linear(self, *input, parts, into),
            },
            Op::QkNormRopeStore(op) => {
                self.short = match ahead.next {
                    Some(Op::Attention(attention)) if ops::takes_short(self, op, attention) => {
                        ops::short_attention(self, op, attention)?;
                        true
                    }
                    _ => false,
                };
                self.when_long(|rec| ops::qk_norm_rope_store(rec, op))
            }
            Op::Attention(op) => {
                self.when_long(|rec| ops::attention(rec, op))?;
                self.short = false;
                Ok(())
            }
            Op::SplitGate { input, q, gate, head_dim } => ops::split_gate(self, *input, *q, *gate, *head_dim),
            Op::GatedFfn(op) => match self.deferred.take() {
                Some(input) => ops::fused_gated(self, &input, op, into),
                None => ops::gated_ffn(self, op, into),
            },
            Op::Residual { add, into } => ops::residual(self, *add, *into),
            Op::Concat { first, second, out } => ops::concat(self, *first, *second, *out),
            Op::Scale { slot, factor } => ops::scale(self, *slot, *factor),
            Op::MlaStore(op) => ops::mla_store(self, op),
            Op::MlaAttention(op) => ops::mla_attention(self, op),
            Op::GatedDelta(op) => ops::gated_delta(self, op),
            Op::ShortConv(op) => ops::short_conv(self, op),
            Op::Moe(op) => ops::moe(self, op, into),
            // Recorded apart, since it works on other rows.
            Op::Head(_) => Ok(()),
        }
    }

    /// Records dispatches that do nothing in steps which the kernel for short contexts takes.
    fn when_long(&mut self, record: impl FnOnce(&mut Self) -> Result<(), GpuError>) -> Result<(), GpuError> {
        let first = self.recorded.len();
        record(self)?;
        if self.short {
            for dispatch in &mut self.recorded[first..] {
                let grid = std::mem::replace(&mut dispatch.grid, Box::new(|_| [0; 3]));
                dispatch.grid =
                    Box::new(move |size| if size.context <= ops::SHORT_CONTEXT { [0; 3] } else { grid(size) });
            }
        }
        Ok(())
    }

    /// Whether the norm that wrote `out` may be left to the next operation: nobody else reads its result.
    fn can_defer(&self, ahead: Ahead<'_>, out: Slot) -> bool {
        let takes = match ahead.next {
            Some(Op::Linear { input, parts }) if *input == out => {
                ops::takes_linear(self, &weights_of(parts)) || ops::takes_mixed(self, parts)
            }
            Some(Op::GatedFfn(op)) if op.input == out => ops::takes_gated(self, op),
            _ => false,
        };
        takes && !ahead.is_read_later(out)
    }

    /// The input of a product that packs it for itself: after a deferred norm, or when no int8 copy is there.
    fn fused_input(&mut self, input: Slot, parts: &[LinearPart]) -> Option<FusedInput> {
        if let Some(deferred) = self.deferred.take() {
            return Some(deferred);
        }
        let packs = !self.fresh.contains(&input) && ops::takes_linear(self, &weights_of(parts));
        packs.then(|| FusedInput { x: self.activation(input), norm: None })
    }

    /// Buffers for the int8 copy of a slot that a kernel writes itself; the copy counts as up to date.
    pub(crate) fn packed_by_kernel(&mut self, slot: Slot) -> Result<Quantised, GpuError> {
        self.fresh.insert(slot);
        self.quantised_buffers(slot, 1)
    }

    /// Whether a product with these matrices reads the plain int8 copy of its input.
    fn wants_int8(&self, parts: &[MatrixId]) -> bool {
        self.class != Class::Many
            && parts.iter().any(|id| self.layout(*id).is_ok_and(|l| self.uses_int8(l) && l != Layout::Q8Field))
    }

    /// Whether products with a layout use int8 activations in this class.
    pub(crate) fn uses_int8(&self, layout: Layout) -> bool {
        self.precision == Precision::Fast && self.class != Class::Many && layout.takes_int8()
    }

    /// Layout that a matrix gets.
    pub(crate) fn layout(&self, id: MatrixId) -> Result<Layout, GpuError> {
        Ok(Layout::of(&view(self.program, &*self.weights.source, id)?))
    }

    /// The stacked matrices `ids`, uploaded at the first call.
    pub(crate) fn matrix(&mut self, ids: &[MatrixId]) -> Result<Arc<DeviceMatrix>, GpuError> {
        if let Some(found) = self.weights.matrices.get(ids) {
            return Ok(Arc::clone(found));
        }
        let source = Arc::clone(&self.weights.source);
        let views = ids.iter().map(|id| view(self.program, &*source, *id)).collect::<Result<Vec<_>, _>>()?;
        let label = ids.first().map_or("weights", |id| self.program.matrices[id.0].name.as_str());
        let made = Arc::new(DeviceMatrix::upload(self.gpu, label, &views.iter().collect::<Vec<_>>())?);
        self.weights.matrices.insert(ids.to_vec(), Arc::clone(&made));
        Ok(made)
    }

    /// A vector of the program.
    pub(crate) fn vector(&mut self, id: VectorId) -> Result<wgpu::Buffer, GpuError> {
        if let Some(found) = self.weights.vectors.get(&id) {
            return Ok(found.clone());
        }
        let values = &self.program.vectors[id.0];
        let mut padding = values.clone();
        padding.resize(padded(values.len()), 0.0);
        let made = self.gpu.buffer_with("vector", &padding)?;
        self.weights.vectors.insert(id, made.clone());
        Ok(made)
    }

    /// A buffer of at least `bytes` for one purpose; `index` tells apart buffers that live at the same time.
    pub(crate) fn scratch(&mut self, name: &'static str, index: usize, bytes: usize) -> Result<wgpu::Buffer, GpuError> {
        if let Some(found) = self.scratch.get(&(name, index)).filter(|found| found.size() >= bytes as u64) {
            return Ok(found.clone());
        }
        let made = self.gpu.buffer(name, bytes as u64)?;
        self.scratch.insert((name, index), made.clone());
        Ok(made)
    }

    /// A slot as an activation.
    pub(crate) fn activation(&self, slot: Slot) -> Activation {
        let (width, stride) = (self.slots.width(slot), self.slots.stride(slot));
        Activation { buffer: self.slots.buffer(slot).clone(), width, stride }
    }

    /// Buffers for `sets` int8 copies of a slot.
    pub(crate) fn quantised_buffers(&mut self, slot: Slot, sets: usize) -> Result<Quantised, GpuError> {
        let (rows, groups) = (self.slots.rows(), self.slots.stride(slot) / 32);
        let index = slot.0 * 8 + sets;
        let (per_value, groups) = (self.codes, sets * self.codes.count() * rows * groups);
        let codes = self.scratch("int8 codes", index, groups * 32)?;
        let scales = self.scratch("int8 scales", index, groups * 8)?;
        Ok(Quantised { codes, scales, rows, per_value })
    }

    /// The plain int8 copy of a slot, made now unless the slot's norm made it.
    pub(crate) fn quantised(&mut self, slot: Slot) -> Result<Quantised, GpuError> {
        let buffers = self.quantised_buffers(slot, 1)?;
        if self.fresh.insert(slot) {
            let input = self.activation(slot);
            ops::quantise(self, &input, None, 1, &buffers, Rows::Step)?;
        }
        Ok(buffers)
    }

    /// Records a dispatch. The step is always binding 0.
    pub(crate) fn dispatch(
        &mut self,
        source: &Source,
        binds: &[Bind<'_>],
        grid: impl Fn(&StepSize) -> [u32; 3] + Send + 'static,
    ) -> Result<(), GpuError> {
        let mut all = vec![Bind::read(0, self.step)];
        all.extend_from_slice(binds);
        self.recorded.push(self.kernels.dispatch(self.gpu, source, &all, grid)?);
        Ok(())
    }

    /// What was recorded so far, for recorders that are driven by hand.
    pub(crate) fn finish(self) -> Vec<Dispatch> {
        self.recorded
    }
}

/// The matrices of a linear map.
pub(crate) fn weights_of(parts: &[LinearPart]) -> Vec<MatrixId> {
    parts.iter().map(|part| part.weight).collect()
}

/// A checked view of a matrix of the program.
pub(crate) fn view<'w>(program: &Program, weights: &'w dyn Weights, id: MatrixId) -> Result<MatrixView<'w>, GpuError> {
    let decl = &program.matrices[id.0];
    MatrixView::new(decl.dtype, weights.bytes(decl.tensor)?, decl.rows, decl.cols).map_err(|error| {
        cortiq_model::ModelError::Payload { name: decl.name.clone(), reason: error.to_string() }.into()
    })
}
