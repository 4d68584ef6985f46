//! How much device memory a model takes, and how much it may take: decided before anything is uploaded.

use std::collections::HashSet;
use std::fmt::{self, Display};
use std::ops::Range;

use cortiq_model::{MatrixId, Op, Program, Weights};

use crate::options::GpuOptions;
use crate::slots::padded;
use crate::state::DeviceState;
use crate::weights::device_bytes;
use crate::{Caps, GpuError, Memory};

/// Budget on a device with its own memory whose driver says nothing about it: what most such cards have to spare.
const GUESS: u64 = 8 << 30;

/// Most that is left to the driver of what it calls free.
const RESERVE: u64 = 512 << 20;

/// What limits the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetOrigin {
    /// The caller.
    Asked,
    /// What the driver says is free, less 5 % or 512 MiB for the driver itself.
    Free,
    /// The size of the device's memory as the driver says it, less 10 %: nobody says what is free.
    Size,
    /// A guess of 8 GiB: a device with memory of its own, of which the driver says nothing.
    Guess,
    /// Nothing: the memory is the system's.
    Shared,
}

impl Display for BudgetOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Asked => "as asked",
            Self::Free => "what the driver says is free",
            Self::Size => "nine tenths of the device's memory",
            Self::Guess => "a guess, since the driver says nothing",
            Self::Shared => "the system's memory",
        })
    }
}

/// Bytes of device memory that an executor may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// None is no limit.
    pub bytes: Option<u64>,
    /// What limits it.
    pub origin: BudgetOrigin,
}

impl Budget {
    /// The budget of a device: what was asked for, else what its driver says, else by the kind of device.
    pub fn of(asked: Option<u64>, memory: Memory, caps: &Caps) -> Self {
        let (bytes, origin) = match (asked, memory.free, memory.total) {
            (Some(asked), _, _) => (Some(asked), BudgetOrigin::Asked),
            (None, Some(free), _) => (Some(free - (free / 20).min(RESERVE)), BudgetOrigin::Free),
            (None, None, Some(total)) if caps.adapter.discrete => (Some(total - total / 10), BudgetOrigin::Size),
            (None, None, _) if caps.adapter.discrete => (Some(GUESS), BudgetOrigin::Guess),
            (None, None, _) => (None, BudgetOrigin::Shared),
        };
        Self { bytes, origin }
    }

    /// Refuses what does not fit.
    pub(crate) fn check(&self, need: Need) -> Result<(), GpuError> {
        match self.bytes {
            Some(budget) if need.total() > budget => Err(GpuError::OverBudget { need, budget, origin: self.origin }),
            _ => Ok(()),
        }
    }
}

/// Bytes of device memory that a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Need {
    /// All matrices and vectors in the device's layouts.
    pub weights: u64,
    /// State of one sequence of [`Need::positions`].
    pub state: u64,
    /// Length of that sequence.
    pub positions: usize,
    /// Activations of the longest submission, and what kernels keep between them.
    pub scratch: u64,
}

impl Need {
    /// Everything.
    pub fn total(&self) -> u64 {
        self.weights.saturating_add(self.state).saturating_add(self.scratch)
    }

    /// What `parts` of `program`'s operations take with `options`, and its draft if it has one.
    ///
    /// # Errors
    /// When a weight cannot be read.
    pub fn of(
        program: &Program,
        weights: &dyn Weights,
        options: &GpuOptions,
        parts: &[Range<usize>],
    ) -> Result<Self, GpuError> {
        let drafts = program.draft.as_ref().map_or(&[][..], |draft| &draft.ops);
        let trunk = parts.iter().flat_map(|part| &program.ops[part.clone()]);
        let used: HashSet<MatrixId> = trunk.chain(drafts).flat_map(Op::matrices).collect();
        // Vectors are small beside the matrices: all of them are counted.
        let mut bytes: u64 = program.vectors.iter().map(|vector| (padded(vector.len()) * 4) as u64).sum();
        for id in used {
            let view = crate::plan::view(program, weights, id)?;
            bytes = bytes.saturating_add(device_bytes(&view));
        }
        let positions = options.limits.max_positions;
        let state = DeviceState::bytes_of_sequence(&program.states, positions, options.kv);
        Ok(Self { weights: bytes, state, positions, scratch: scratch(program, options.max_rows) })
    }
}

/// Activations of `rows` tokens, twice for the copies that products read, and what the operations keep for themselves.
fn scratch(program: &Program, rows: usize) -> u64 {
    let slots: usize = program.slots.iter().map(|slot| padded(slot.width)).sum();
    let drafts = program.draft.as_ref().map_or(&[][..], |draft| &draft.ops);
    let own = program.ops.iter().chain(drafts).map(|op| op_scratch(op, rows)).max().unwrap_or(0);
    let rows_at_once = crate::executor::HEAD_ROWS;
    let head = rows_at_once * (2 * program.vocab_size + padded(program.hidden_size) * 2)
        + crate::ops::top_scratch(program.vocab_size, rows_at_once);
    let floats = (3 * slots).saturating_mul(rows).saturating_add(own).saturating_add(head);
    (floats as u64).saturating_mul(4)
}

/// Floats between the kernels of one operation on `rows` tokens. Layers share them.
fn op_scratch(op: &Op, rows: usize) -> usize {
    match op {
        // Parts of up to 16 rows over 64 splits of the keys.
        Op::Attention(op) => 64 * 16 * op.heads * (op.head_dim + 4),
        Op::MlaAttention(op) => (2 * rows + 64 * 16) * op.heads * (op.kv_rank + 2),
        Op::GatedDelta(op) => rows * (op.channels() + 5 * op.value_heads + op.key_heads) * 2,
        Op::Moe(op) => {
            let jobs = rows * (op.top_k + 1);
            // Sorted products and their int8 copies, outputs, the router's logits and choices.
            let sum = op.shared.map_or(0, |shared| padded(shared.intermediate_size) * 3);
            jobs * (padded(op.intermediate_size) * 5 + 8) + rows * (op.experts.len() + sum)
        }
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::AdapterSummary;

    fn caps(discrete: bool) -> Caps {
        let text = String::new;
        Caps {
            adapter: AdapterSummary { name: text(), backend: text(), driver: text(), software: false, discrete },
            subgroup: None,
            f16: false,
            coop: None,
            timestamps: false,
            max_binding: 0,
            max_buffer: 0,
            workgroup_memory: 0,
            max_threads: 1024,
        }
    }

    #[test]
    fn budgets() {
        const GIB: u64 = 1 << 30;
        let memory = |total, free| Memory { total, free };
        let cases = [
            (Some(5), memory(Some(GIB), Some(GIB)), true, Some(5), BudgetOrigin::Asked),
            (None, memory(Some(100 * GIB), Some(80 * GIB)), true, Some(80 * GIB - RESERVE), BudgetOrigin::Free),
            (None, memory(Some(2000), Some(1000)), false, Some(950), BudgetOrigin::Free),
            (None, memory(Some(1000), None), true, Some(900), BudgetOrigin::Size),
            (None, memory(Some(1000), None), false, None, BudgetOrigin::Shared),
            (None, memory(None, None), true, Some(GUESS), BudgetOrigin::Guess),
            (None, memory(None, None), false, None, BudgetOrigin::Shared),
        ];
        for (asked, memory, discrete, bytes, origin) in cases {
            let budget = Budget::of(asked, memory, &caps(discrete));
            assert_eq!(budget, Budget { bytes, origin }, "{asked:?} {memory:?} {discrete}");
        }
    }

    #[test]
    fn both_numbers_are_named() {
        let need = Need { weights: 100 << 20, state: 7 << 20, positions: 512, scratch: 3 << 20 };
        let budget = |bytes| Budget { bytes, origin: BudgetOrigin::Asked };
        assert!(budget(Some(110 << 20)).check(need).is_ok() && budget(None).check(need).is_ok());
        let text = budget(Some((110 << 20) - 1)).check(need).unwrap_err().to_string();
        for word in ["110 MiB", "100 MiB", "7 MiB", "512 positions", "109 MiB", "as asked", "cpu executor"] {
            assert!(text.contains(word), "no {word} in: {text}");
        }
    }
}
