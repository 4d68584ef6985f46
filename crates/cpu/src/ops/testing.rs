//! Programs of single operations: token `t` of a test stands for row `t` of its inputs.

use std::ops::Range;
use std::sync::Arc;

use cortiq_cmf::Dtype;
use cortiq_model::{
    Batch, Executor, KvDtype, MatrixDecl, MatrixId, ModelError, Op, OwnedTensor, OwnedWeights, Precision, Program,
    RopeId, RopeTable, SequenceId, Slot, SlotDecl, Span, StateDecl, StateId, StateLimits, VectorId, Weights,
};

use crate::{CpuExecutor, CpuOptions};

/// Smooth values between -1 and 1.
pub(crate) fn wave(n: usize, salt: f32) -> Vec<f32> {
    (0..n).map(|i| (i as f32 * (0.731 + salt * 0.01) + salt).sin() * (0.4 + (i as f32 * 0.011).cos() * 0.6)).collect()
}

/// A program under construction.
pub(crate) struct Bench {
    program: Program,
    weights: OwnedWeights,
}

impl Bench {
    /// A program for `tokens` tokens.
    pub(crate) fn new(tokens: usize) -> Self {
        let program = Program::empty(1, tokens, tokens);
        Self { program, weights: OwnedWeights::new() }
    }

    pub(crate) fn slot(&mut self, width: usize) -> Slot {
        self.program.slots.push(SlotDecl { name: "test", width });
        Slot(self.program.slots.len() - 1)
    }

    pub(crate) fn matrix(&mut self, values: Vec<f32>, rows: usize, cols: usize) -> MatrixId {
        assert_eq!(values.len(), rows * cols);
        let name = format!("matrix {}", self.program.matrices.len());
        let bytes = values.into_iter().flat_map(f32::to_le_bytes).collect();
        self.weights.insert(&*name, OwnedTensor { dtype: Dtype::F32, shape: vec![rows as u32, cols as u32], bytes });
        let tensor = self.weights.find(&name).unwrap();
        self.program.matrices.push(MatrixDecl { tensor, name, dtype: Dtype::F32, rows, cols });
        MatrixId(self.program.matrices.len() - 1)
    }

    /// A slot that holds row `t` of `values` for token `t`.
    pub(crate) fn input(&mut self, values: Vec<f32>, width: usize) -> Slot {
        let table = self.matrix(values, self.program.vocab_size, width);
        let out = self.slot(width);
        self.op(Op::Embed { table, scale: 1.0, out });
        out
    }

    pub(crate) fn vector(&mut self, values: Vec<f32>) -> VectorId {
        self.program.vectors.push(values);
        VectorId(self.program.vectors.len() - 1)
    }

    pub(crate) fn state(&mut self, decl: StateDecl) -> StateId {
        self.program.states.push(decl);
        StateId(self.program.states.len() - 1)
    }

    pub(crate) fn rope(&mut self, table: RopeTable) -> RopeId {
        self.program.ropes.push(table);
        RopeId(self.program.ropes.len() - 1)
    }

    pub(crate) fn op(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    pub(crate) fn executor(self, threads: usize) -> Tester {
        self.executor_with(threads, KvDtype::F32)
    }

    pub(crate) fn executor_with(self, threads: usize, kv: KvDtype) -> Tester {
        let limits = StateLimits { max_positions: 1 << 12, max_bytes: 1 << 28 };
        let options = CpuOptions { threads, kv, precision: Precision::Exact, ..CpuOptions::default() };
        let mut executor = CpuExecutor::new(self.program, Arc::new(self.weights), limits, options).unwrap();
        let sequence = executor.states().open().unwrap();
        Tester { executor, sequence, next: 0 }
    }
}

/// An executor with one sequence that grows.
pub(crate) struct Tester {
    pub(crate) executor: CpuExecutor,
    pub(crate) sequence: SequenceId,
    next: usize,
}

impl Tester {
    /// Feeds the next `len` tokens to the sequence.
    pub(crate) fn step(&mut self, len: usize) -> Result<(), ModelError> {
        let tokens: Vec<u32> = (self.next..self.next + len).map(|t| t as u32).collect();
        let span = Span { sequence: self.sequence, start: self.next, len, known_len: 0 };
        self.executor.step(&Batch { tokens: &tokens, spans: &[span], logit_rows: &[] })?;
        self.next += len;
        Ok(())
    }

    /// One step in which every range of tokens is a new sequence of its own.
    pub(crate) fn step_together(&mut self, ranges: &[Range<usize>]) {
        let tokens: Vec<u32> = ranges.iter().cloned().flatten().map(|t| t as u32).collect();
        let spans: Vec<Span> = ranges
            .iter()
            .map(|r| {
                let sequence = self.executor.states().open().unwrap();
                Span { sequence, start: 0, len: r.len(), known_len: 0 }
            })
            .collect();
        self.executor.step(&Batch { tokens: &tokens, spans: &spans, logit_rows: &[] }).unwrap();
    }

    /// A slot after the latest step.
    pub(crate) fn slot(&self, slot: Slot) -> &[f32] {
        &self.executor.run.slots[slot.0]
    }

    /// The slot after each of several steps, one after the other.
    pub(crate) fn steps(&mut self, lens: &[usize], slot: Slot) -> Vec<f32> {
        let mut all = Vec::new();
        for len in lens {
            self.step(*len).unwrap();
            all.extend_from_slice(self.slot(slot));
        }
        all
    }
}

/// Largest absolute difference.
pub(crate) fn distance(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let difference = a.iter().zip(b).map(|(x, y)| (x - y).abs());
    difference.fold(0.0, |max, d| if d.is_nan() { f32::NAN } else { f32::max(max, d) })
}
