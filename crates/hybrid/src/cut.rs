//! A placement as parts of a step, with what crosses between them.

use std::collections::{HashMap, HashSet};

use cortiq_model::{Op, Part, Slot};

use crate::{Placement, Side};

/// A part of a step on one side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) side: Side,
    first: usize,
    end: usize,
    pub(crate) inputs: Vec<Slot>,
    pub(crate) outputs: Vec<Slot>,
}

impl Cut {
    /// As an executor takes it.
    pub(crate) fn part(&self) -> Part<'_> {
        Part { first: self.first, end: self.end, inputs: &self.inputs, outputs: &self.outputs }
    }
}

/// Who has the present rows of a slot.
#[derive(Default)]
struct Known {
    sides: HashSet<Side>,
    /// The part that wrote them.
    writer: usize,
}

/// The parts of `ops`, in order. A slot crosses once after it was written, and only when the other side reads it.
pub(crate) fn cut(ops: &[Op], placement: &Placement) -> Vec<Cut> {
    let empty = |(side, part): (Side, std::ops::Range<usize>)| {
        let (inputs, outputs) = (Vec::new(), Vec::new());
        Cut { side, first: part.start, end: part.end, inputs, outputs }
    };
    let mut cuts: Vec<Cut> = placement.runs().into_iter().map(empty).collect();
    let mut known: HashMap<Slot, Known> = HashMap::new();
    for index in 0..cuts.len() {
        let (side, range) = (cuts[index].side, cuts[index].part().range());
        for op in &ops[range] {
            for slot in op.reads() {
                // Rows that nobody wrote are scratch of the operation.
                let Some(rows) = known.get_mut(&slot) else { continue };
                if rows.sides.insert(side) {
                    cuts[rows.writer].outputs.push(slot);
                    cuts[index].inputs.push(slot);
                }
            }
            for slot in op.writes() {
                known.insert(slot, Known { sides: HashSet::from([side]), writer: index });
            }
        }
    }
    cuts
}
