//! Mixture of experts.
//!
//! Up to [`Class::Few`]: router, choice, gate and up of every job, and the weighted sum of their downs; a job is a
//! token with one of its experts. [`Class::Many`]: the jobs are sorted by expert and multiplied in tiles. A shared
//! expert as wide as the others is one more job of every token; any other has kernels or products of its own.

mod experts;
mod grouped;
mod jobs;
mod one;
mod route;

use cortiq_model::{MoeOp, Slot};

use super::linear::Store;
use crate::GpuError;
use crate::plan::{Activation, Class, Recorder};
use crate::slots::padded;
use experts::{Experts, Numbers};
pub(crate) use one::most_cols;
use route::route;

/// What is the same for all kernels of an operation.
pub(super) struct Layer<'a> {
    op: &'a MoeOp,
    input: Activation,
    /// Where the result goes.
    out: Activation,
    store: Store,
    /// Jobs of a token, the shared expert's included: its factor is the last one.
    jobs: usize,
    /// Whether the shared expert is one of [`Layer::experts`].
    shared_inside: bool,
    /// `[tokens, jobs]`.
    chosen: wgpu::Buffer,
    factors: wgpu::Buffer,
}

/// See [`MoeOp`]. With `into`, the result is added there instead of being stored.
pub(crate) fn moe(rec: &mut Recorder<'_>, op: &MoeOp, into: Option<Slot>) -> Result<(), GpuError> {
    let layer = Layer::new(rec, op, into)?;
    route(rec, &layer)?;
    let (experts, shared) = (layer.experts(rec)?, layer.shared_alone(rec)?);
    match (rec.class, &shared) {
        (Class::Many, _) => grouped::run(rec, &layer, &experts),
        (_, None) => jobs::run(rec, &layer, &[&experts]),
        (_, Some(shared)) => jobs::run(rec, &layer, &[&experts, shared]),
    }
}

impl<'a> Layer<'a> {
    fn new(rec: &mut Recorder<'_>, op: &'a MoeOp, into: Option<Slot>) -> Result<Self, GpuError> {
        let jobs = op.top_k + usize::from(op.shared.is_some());
        let bytes = rec.slots.rows() * jobs * 4;
        Ok(Self {
            op,
            input: rec.activation(op.input),
            out: rec.activation(into.unwrap_or(op.out)),
            store: if into.is_some() { Store::Add } else { Store::Set },
            jobs,
            shared_inside: op.shared.is_some_and(|shared| shared.intermediate_size == op.intermediate_size),
            chosen: rec.scratch("moe chosen", 0, bytes)?,
            factors: rec.scratch("moe factors", 0, bytes)?,
        })
    }

    /// The experts, and the shared one where it is like them.
    fn experts(&self, rec: &mut Recorder<'_>) -> Result<Experts, GpuError> {
        let mut all = self.op.experts.clone();
        let shared = self.op.shared.filter(|_| self.shared_inside);
        all.extend(shared.map(|shared| shared.expert));
        let numbers = Numbers { first_expert: 0, first_job: 0, jobs: self.op.top_k + usize::from(shared.is_some()) };
        Experts::new(rec, &all, self.op.intermediate_size, numbers)
    }

    /// A shared expert of another width, for the classes that run it job by job.
    fn shared_alone(&self, rec: &mut Recorder<'_>) -> Result<Option<Experts>, GpuError> {
        let Some(shared) = self.op.shared.filter(|_| !self.shared_inside && rec.class != Class::Many) else {
            return Ok(None);
        };
        let numbers = Numbers { first_expert: self.op.experts.len(), first_job: self.op.top_k, jobs: 1 };
        Experts::new(rec, &[shared.expert], shared.intermediate_size, numbers).map(Some)
    }

    /// `[rows * jobs, padded(width)]` f32 between two kernels.
    fn scratch(
        rec: &mut Recorder<'_>,
        name: &'static str,
        index: usize,
        rows: usize,
        width: usize,
    ) -> Result<Activation, GpuError> {
        let stride = padded(width);
        Ok(Activation { buffer: rec.scratch(name, index, rows * stride * 4)?, width, stride })
    }
}
