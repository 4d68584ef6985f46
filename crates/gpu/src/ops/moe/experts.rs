//! Where the matrices of experts stand on the device.

use std::sync::Arc;

use cortiq_model::{Expert, MatrixId};

use crate::GpuError;
use crate::kernel::Bind;
use crate::plan::Recorder;
use crate::shader::{Source, wgsl};
use crate::slots::padded;
use crate::weights::{DeviceMatrix, Layout};

/// First row of an expert whose matrices stand elsewhere.
const NONE: u32 = u32::MAX;

/// Which matrices of its experts a device matrix holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Gate, then up.
    Pair,
    /// Gate alone: its up has another layout.
    Gate,
    /// Up alone; runs after every [`Role::Gate`].
    Up,
    /// Down.
    Down,
}

/// The experts of one layout, as many as one binding holds, stacked in one device matrix.
pub(super) struct Pool {
    pub(super) role: Role,
    pub(super) matrix: Arc<DeviceMatrix>,
    /// Rows of one of the stacked matrices.
    part_rows: usize,
    /// First rows by expert, where the pool does not hold all of them.
    rows: Option<wgpu::Buffer>,
}

/// How a set of experts is numbered among all that a token may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Numbers {
    /// What `moe_route` calls the first one.
    pub(super) first_expert: usize,
    /// Place of its jobs among those of a token.
    pub(super) first_job: usize,
    /// Jobs of a token.
    pub(super) jobs: usize,
}

/// Experts of one width.
pub(super) struct Experts {
    pub(super) count: usize,
    /// Neurons of each.
    pub(super) width: usize,
    pub(super) numbers: Numbers,
    /// In the order in which they must run.
    pub(super) gate_up: Vec<Pool>,
    pub(super) down: Vec<Pool>,
}

impl Experts {
    /// Uploads `experts`, unless they are there.
    pub(super) fn new(
        rec: &mut Recorder<'_>,
        experts: &[Expert],
        width: usize,
        numbers: Numbers,
    ) -> Result<Self, GpuError> {
        let (mut pairs, mut gates, mut ups, mut downs) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (index, expert) in experts.iter().enumerate() {
            let (gate, up) = (rec.layout(expert.gate)?, rec.layout(expert.up)?);
            if gate == up {
                pairs.push((index, gate, vec![expert.gate, expert.up]));
            } else {
                gates.push((index, gate, vec![expert.gate]));
                ups.push((index, up, vec![expert.up]));
            }
            downs.push((index, rec.layout(expert.down)?, vec![expert.down]));
        }
        let mut pools = |role, members| pools(rec, role, members, experts.len());
        let mut gate_up = pools(Role::Pair, pairs)?;
        gate_up.extend(pools(Role::Gate, gates)?);
        gate_up.extend(pools(Role::Up, ups)?);
        Ok(Self { count: experts.len(), width, numbers, gate_up, down: pools(Role::Down, downs)? })
    }

    /// Constants and snippets that number jobs; `stride` is the number of jobs of a token in all sets.
    pub(super) fn with_jobs(&self, source: Source, stride: usize) -> Source {
        source
            .with("JOBS", self.numbers.jobs)
            .with("JOBS_STRIDE", stride)
            .with("FIRST_JOB", self.numbers.first_job)
            .with("FIRST_EXPERT", self.numbers.first_expert)
            .part(wgsl!("lib/moe_jobs.wgsl"))
    }
}

/// An expert's index, its layout and its matrices of a role.
type Member = (usize, Layout, Vec<MatrixId>);

/// Puts `members` of one layout together, as many as a binding holds.
fn pools(rec: &mut Recorder<'_>, role: Role, members: Vec<Member>, count: usize) -> Result<Vec<Pool>, GpuError> {
    let mut left = members;
    let mut made = Vec::new();
    while let Some((_, layout, ids)) = left.first() {
        let (layout, decl) = (*layout, &rec.program.matrices[ids[0].0]);
        let fit = DeviceMatrix::rows_per_piece(rec.gpu, layout, decl.cols) / (decl.rows * ids.len()).max(1);
        if fit == 0 {
            return Err(GpuError::Unsupported(format!("{}: the device cannot bind a whole expert", decl.name)));
        }
        let (mut same, mut others) = (Vec::new(), Vec::new());
        for member in left {
            if member.1 == layout && same.len() < fit { same.push(member) } else { others.push(member) }
        }
        made.push(pool(rec, role, &same, count)?);
        left = others;
    }
    Ok(made)
}

fn pool(rec: &mut Recorder<'_>, role: Role, members: &[Member], count: usize) -> Result<Pool, GpuError> {
    let ids: Vec<MatrixId> = members.iter().flat_map(|(_, _, ids)| ids).copied().collect();
    let matrix = rec.matrix(&ids)?;
    let part_rows = rec.program.matrices[ids[0].0].rows;
    let mut pool = Pool { role, matrix, part_rows, rows: None };
    if members.len() < count {
        let expert_rows = part_rows * pool.matrices();
        let mut rows = vec![NONE; count];
        members.iter().enumerate().for_each(|(at, (expert, ..))| rows[*expert] = (at * expert_rows) as u32);
        pool.rows = Some(rec.gpu.buffer_with("rows of experts", &rows)?);
    }
    Ok(pool)
}

impl Pool {
    /// Stacked matrices of each expert.
    pub(super) fn matrices(&self) -> usize {
        if self.role == Role::Pair { 2 } else { 1 }
    }

    /// Columns of a row, with its padding.
    pub(super) fn cols(&self) -> usize {
        padded(self.matrix.cols)
    }

    /// How the weights stand.
    pub(super) fn layout(&self) -> Layout {
        self.matrix.layout
    }

    /// Whether products in this class use int8 activations. Factors of columns, which would ask for a copy of the
    /// activations per expert, do not.
    pub(super) fn takes_int8(&self, rec: &Recorder<'_>) -> bool {
        rec.uses_int8(self.layout()) && self.layout() != Layout::Q8Field
    }

    /// Adds the weights and where the experts start.
    pub(super) fn with_weights(&self, source: Source) -> Source {
        let source = source
            .with("PART_ROWS", self.part_rows)
            .with("EXPERT_ROWS", self.part_rows * self.matrices())
            .part(wgsl!("lib/moe_part.wgsl"))
            .part(wgsl!("lib/half.wgsl"))
            .part(match self.rows {
                Some(_) => wgsl!("lib/moe_some_experts.wgsl"),
                None => wgsl!("lib/moe_every_expert.wgsl"),
            });
        self.layout().with_weights(source, self.matrix.cols)
    }

    /// Which sums of a neuron are made, and what becomes of them.
    pub(super) fn with_role(&self, source: Source) -> Source {
        source
            .with("PAIR", self.role == Role::Pair)
            .with("GATE_ONLY", self.role == Role::Gate)
            .with("UP_ONLY", self.role == Role::Up)
    }

    /// Bindings of [`Pool::with_weights`].
    pub(super) fn binds(&self) -> impl Iterator<Item = Bind<'_>> {
        let rows = self.rows.iter().map(|rows| Bind::read(6, rows));
        let fields = self.matrix.fields.iter().map(|fields| Bind::read(9, fields));
        // Pools are cut so that a matrix has one piece.
        rows.chain(fields).chain(self.matrix.pieces.iter().take(1).flat_map(|piece| piece.binds()))
    }
}
