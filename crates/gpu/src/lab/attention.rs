//! Attention over keys and values that the caller gives.

use cortiq_model::{
    AttentionOp, Batch, KvDtype, KvLayer, Program, SequenceId, SequenceState, Slot, SlotDecl, Span, StateDecl, StateId,
};
use cortiq_quant::f32_to_f16;

use super::{Bench, Lab, pad_rows};
use crate::kernel::{Dispatch, StepSize};
use crate::ops;
use crate::plan::Class;
use crate::slots::padded;
use crate::state::{BLOCK, NO_BLOCK};
use crate::step::StepWriter;
use crate::{GpuError, GpuOptions, Precision};

/// One sequence of a batch: its last `rows` positions are the queries.
#[derive(Clone, Debug)]
pub struct Run {
    /// Positions stored, the queries' own included.
    pub positions: usize,
    /// Queries.
    pub rows: usize,
    /// `[positions, kv_heads, head_dim]`.
    pub keys: Vec<f32>,
    /// The same shape.
    pub values: Vec<f32>,
}

/// Attention of a batch.
#[derive(Clone, Debug)]
pub struct AttentionCase {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// As in [`AttentionOp`].
    pub window: Option<usize>,
    /// As in [`AttentionOp`].
    pub softcap: Option<f32>,
    /// f32 or f16 keys and values.
    pub precision: Precision,
    /// The sequences.
    pub runs: Vec<Run>,
    /// `[rows of all runs, heads, head_dim]`.
    pub q: Vec<f32>,
}

impl AttentionCase {
    /// Factor on the scores.
    pub fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    fn rows(&self) -> usize {
        self.runs.iter().map(|run| run.rows).sum()
    }

    /// A program whose only state is this attention's cache; slot 0 is the query, slot 1 the output.
    fn program(&self) -> Program {
        let mut program = Program::empty(0, 0, 0);
        let width = self.heads * self.head_dim;
        program.slots = vec![SlotDecl { name: "q", width }, SlotDecl { name: "out", width }];
        let layer =
            KvLayer { kv_heads: self.kv_heads, key_dim: self.head_dim, value_dim: self.head_dim, window: self.window };
        program.states = vec![StateDecl::Kv(layer)];
        program
    }

    fn op(&self) -> AttentionOp {
        AttentionOp {
            q: Slot(0),
            gate: None,
            out: Slot(1),
            state: StateId(0),
            heads: self.heads,
            kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            window: self.window,
            scale: self.scale(),
            softcap: self.softcap,
            head_mask: None,
        }
    }
}

/// Words of values in the cache's storage type.
fn stored(values: &[f32], kv: KvDtype) -> Vec<u8> {
    match kv {
        KvDtype::F16 => values.iter().flat_map(|value| f32_to_f16(*value).to_le_bytes()).collect(),
        _ => values.iter().flat_map(|value| value.to_le_bytes()).collect(),
    }
}

impl Bench {
    /// Makes room for the sequences of `case` and writes their keys and values.
    fn fill(&mut self, lab: &Lab, case: &AttentionCase) -> Result<Vec<SequenceId>, GpuError> {
        let mut ids = Vec::new();
        for run in &case.runs {
            let id = self.state.open()?;
            // Two steps, as a model makes them: the window forgets what the first query no longer sees.
            self.state.append(id, run.positions - run.rows)?;
            self.state.append(id, run.rows)?;
            ids.push(id);
        }
        self.state.fit(&lab.gpu)?;
        let kv = self.state.kv();
        for (run, id) in case.runs.iter().zip(&ids) {
            let blocks = self.state.blocks(*id, 0)?.to_vec();
            let (_, keys, values) = self.state.cache(StateId(0))?;
            for (buffer, all) in [(keys, &run.keys), (values, &run.values)] {
                for (index, block) in blocks.iter().enumerate().filter(|(_, block)| **block != NO_BLOCK) {
                    let bytes = stored(&block_of(case, all, index), kv);
                    lab.gpu.write(buffer, u64::from(*block) * bytes.len() as u64, &bytes);
                }
            }
        }
        Ok(ids)
    }
}

/// A block of `[positions, kv_heads, head_dim]` values as `[kv_heads, 32, head_dim]`.
fn block_of(case: &AttentionCase, values: &[f32], index: usize) -> Vec<f32> {
    let (heads, dim) = (case.kv_heads, case.head_dim);
    let mut block = vec![0.0; heads * BLOCK * dim];
    let positions = values.chunks(heads * dim).skip(index * BLOCK).take(BLOCK);
    for (place, position) in positions.enumerate() {
        for (head, vector) in position.chunks(dim).enumerate() {
            block[(head * BLOCK + place) * dim..][..dim].copy_from_slice(vector);
        }
    }
    block
}

impl Lab {
    /// The outputs, `[rows, heads, head_dim]`.
    pub fn attention(&mut self, case: &AttentionCase) -> Result<Vec<f32>, GpuError> {
        let (bench, dispatches, size) = self.record_attention(case)?;
        self.run(&dispatches, &size)?;
        let (width, stride) = (bench.slots.width(Slot(1)), bench.slots.stride(Slot(1)));
        self.read_rows(bench.slots.buffer(Slot(1)), case.rows(), width, stride)
    }

    /// Seconds of an attention.
    pub fn time_attention(&mut self, case: &AttentionCase, repeats: u32) -> Result<f64, GpuError> {
        let (_bench, dispatches, size) = self.record_attention(case)?;
        self.time(&dispatches, &size, repeats)
    }

    fn record_attention(&mut self, case: &AttentionCase) -> Result<(Bench, Vec<Dispatch>, StepSize), GpuError> {
        let kv = GpuOptions::kv_of(case.precision);
        let mut bench = Bench::new(&self.gpu, case.program(), case.rows(), kv, 0)?;
        let ids = bench.fill(self, case)?;
        let span = |(run, id): (&Run, &SequenceId)| Span {
            sequence: *id,
            start: run.positions - run.rows,
            len: run.rows,
            known_len: 0,
        };
        let spans: Vec<Span> = case.runs.iter().zip(&ids).map(span).collect();
        let tokens = vec![0; case.rows()];
        let batch = Batch { tokens: &tokens, spans: &spans, logit_rows: &[] };
        let mut writer = StepWriter::default();
        let Bench { program, state, step, step_layout, .. } = &bench;
        let size = writer.write(&self.gpu, step, step_layout, program, state, &batch)?;
        let width = case.heads * case.head_dim;
        let q = pad_rows(&case.q, width, padded(width));
        self.gpu.write(bench.slots.buffer(Slot(0)), 0, bytemuck::cast_slice(&q));
        let mut rec = self.recorder(&bench, Class::of(case.rows()), case.precision);
        ops::attention(&mut rec, &case.op())?;
        let dispatches = rec.finish();
        Ok((bench, dispatches, size))
    }
}
