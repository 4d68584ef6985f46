//! Mixture of experts: router, gate and up of all experts in use, their down, and the weighted sum.
//!
//! Positions are grouped by expert, so that an expert's matrices are read once per step: bytes read are those of the
//! router, of the experts that some position chose, and of the shared expert. Every (position, choice) has an output
//! row of its own, and a position's rows are added best choice first, then the shared expert: its result does not
//! depend on its neighbours.

mod router;

use std::ops::Range;

use cortiq_model::{Activation, Expert, ModelError, MoeOp};
use cortiq_quant::MatrixView;
use smallvec::SmallVec;

use super::elementwise::activate;
use super::linear::{Arithmetic, Weight, item_shape, matmul};
use super::product::{Product, Source, prepare};
use super::softmax::sigmoid;
use crate::executor::{Model, Run};
use crate::kernels::{InputBits, Inputs};
use crate::pool::{ColumnTile, Columns, Pool, Scratch};
use router::{Choice, Work};

/// Buffers that stay from step to step.
#[derive(Default)]
pub(crate) struct MoeBuffers {
    logits: Vec<f32>,
    work: Work,
    /// `[tokens, top_k]`, best first.
    choices: Vec<Choice>,
    /// Row of every choice in the buffers below, which are sorted by expert.
    places: Vec<usize>,
    /// Rows of each expert.
    counts: Vec<usize>,
    /// Inputs, `[tokens * top_k, hidden_size]`; not used for a single token, whose input all experts share.
    gathered: Vec<f32>,
    /// `act(gate) * up`: `[tokens * top_k, intermediate_size]`, then the shared expert's.
    products: Vec<f32>,
    /// Outputs: `[tokens * top_k, hidden_size]`, then the shared expert's `[tokens, hidden_size]`.
    outputs: Vec<f32>,
    /// Row of the shared expert's gate.
    shared_gate: Vec<f32>,
    /// Quantised inputs of a dispatch.
    inputs: Inputs,
}

/// An expert and the rows that it works on.
struct Unit<'a> {
    gate: &'a MatrixView<'a>,
    up: &'a MatrixView<'a>,
    down: &'a MatrixView<'a>,
    /// In the buffers sorted by expert; the shared expert comes after all others.
    rows: Range<usize>,
}

type Units<'a> = SmallVec<[Unit<'a>; 16]>;

/// See [`MoeOp`].
pub(crate) fn moe(model: &Model, run: &mut Run, op: &MoeOp) -> Result<(), ModelError> {
    let mut out = std::mem::take(&mut run.slots[op.out.0]);
    let Run { slots, pool, moe, .. } = run;
    let layer = Layer { model, op, input: &slots[op.input.0], hidden_size: model.width(op.input) };
    let result = layer.run(pool, moe, &mut out);
    run.slots[op.out.0] = out;
    result
}

struct Layer<'a> {
    model: &'a Model,
    op: &'a MoeOp,
    /// `[tokens, hidden_size]`.
    input: &'a [f32],
    hidden_size: usize,
}

impl<'a> Layer<'a> {
    fn tokens(&self) -> usize {
        self.input.len() / self.hidden_size
    }

    fn run(&self, pool: &mut Pool, buffers: &mut MoeBuffers, out: &mut [f32]) -> Result<(), ModelError> {
        self.route(pool, buffers)?;
        let units = self.sort(buffers);
        self.gate_up(pool, buffers, &units)?;
        self.down(pool, buffers, &units)?;
        self.combine(pool, buffers, out)
    }

    /// Choices of every position.
    fn route(&self, pool: &mut Pool, buffers: &mut MoeBuffers) -> Result<(), ModelError> {
        let view = self.model.matrix(self.op.router);
        let experts = view.rows();
        buffers.logits.resize(self.tokens() * experts, 0.0);
        let columns = Columns::new(&mut buffers.logits, experts);
        // Close scores decide which experts work, so the router's inputs are never quantised.
        let arithmetic = Arithmetic { isa: self.model.isa, width: None, inputs: &mut buffers.inputs };
        matmul(pool, arithmetic, self.input, &[Weight { view, bias: None }], &[columns])?;
        let bias = self.op.selection_bias.map(|id| self.model.program.vectors[id.0].as_slice());
        buffers.choices.clear();
        for logits in buffers.logits.chunks_exact_mut(experts) {
            router::choose(self.op, bias, logits, &mut buffers.work, &mut buffers.choices)?;
        }
        Ok(())
    }

    /// Gives every choice its row, gathers the inputs, and lists the experts in use.
    fn sort(&self, buffers: &mut MoeBuffers) -> Units<'a> {
        let MoeBuffers { choices, places, counts, gathered, .. } = buffers;
        counts.clear();
        counts.resize(self.op.experts.len(), 0);
        choices.iter().for_each(|choice| counts[choice.expert] += 1);
        let mut units = Units::new();
        let mut next = 0;
        for (expert, count) in self.op.experts.iter().zip(counts.iter_mut()) {
            let rows = next..next + *count;
            next = rows.end;
            *count = rows.start;
            if !rows.is_empty() {
                units.push(self.unit(expert, rows));
            }
        }
        places.clear();
        let alone = self.tokens() == 1;
        gathered.resize(if alone { 0 } else { choices.len() * self.hidden_size }, 0.0);
        for (index, choice) in choices.iter().enumerate() {
            let place = counts[choice.expert];
            counts[choice.expert] += 1;
            places.push(place);
            if !alone {
                let token = index / self.op.top_k * self.hidden_size;
                gathered[place * self.hidden_size..][..self.hidden_size]
                    .copy_from_slice(&self.input[token..token + self.hidden_size]);
            }
        }
        if let Some(shared) = &self.op.shared {
            units.push(self.unit(&shared.expert, next..next + self.tokens()));
        }
        units
    }

    fn unit(&self, expert: &Expert, rows: Range<usize>) -> Unit<'a> {
        let matrix = |id| self.model.matrix(id);
        Unit { gate: matrix(expert.gate), up: matrix(expert.up), down: matrix(expert.down), rows }
    }

    /// `act(gate x) * (up x)` of all experts, one dispatch.
    fn gate_up(&self, pool: &mut Pool, buffers: &mut MoeBuffers, units: &Units<'_>) -> Result<(), ModelError> {
        let MoeBuffers { gathered, products, choices, inputs, .. } = buffers;
        let total = units.iter().map(|unit| unit.rows.len() * unit.gate.rows()).sum();
        products.resize(total, 0.0);
        let mut rest = products.as_mut_slice();
        let columns: SmallVec<[Columns<'_>; 16]> = units
            .iter()
            .map(|unit| {
                let (own, others) = std::mem::take(&mut rest).split_at_mut(unit.rows.len() * unit.gate.rows());
                rest = others;
                Columns::new(own, unit.gate.rows())
            })
            .collect();
        let (isa, activation) = (self.model.isa, self.op.activation);
        let rows_of = |unit: &Unit<'_>| {
            let shared = unit.rows.start >= choices.len();
            if shared || gathered.is_empty() {
                self.input
            } else {
                &gathered[unit.rows.start * self.hidden_size..unit.rows.end * self.hidden_size]
            }
        };
        inputs.clear();
        let mut places = SmallVec::<[[Option<usize>; 2]; 16]>::new();
        for unit in units {
            let mut place = |view| prepare(pool, isa, inputs, view, rows_of(unit), self.model.fast(InputBits::Eight));
            places.push([place(unit.gate)?, place(unit.up)?]);
        }
        let shape = self.item_shape(pool, units);
        pool.run_grid(&columns, shape, 1, |scratch, index, tile| {
            let unit = &units[index];
            let product = |view, place: Option<usize>| {
                let source = Source { x: rows_of(unit), packed: place.map(|place| inputs.rows(place)) };
                Product { isa, view, source }
            };
            let [gate, up] = places[index];
            gate_up_tile([product(unit.gate, gate), product(unit.up, up)], activation, scratch, tile);
        })?;
        Ok(())
    }

    /// See [`item_shape`]; as many items as experts at least, so rows are seldom cut for the sake of threads.
    fn item_shape(&self, pool: &Pool, units: &Units<'_>) -> (usize, usize) {
        item_shape(self.tokens(), units.iter().map(|unit| unit.gate.rows()).sum(), pool.threads())
    }

    /// `down` of the products of all experts, one dispatch.
    fn down(&self, pool: &mut Pool, buffers: &mut MoeBuffers, units: &Units<'_>) -> Result<(), ModelError> {
        let MoeBuffers { products, outputs, inputs, .. } = buffers;
        let rows = units.iter().map(|unit| unit.rows.len()).sum::<usize>();
        outputs.resize(rows * self.hidden_size, 0.0);
        let mut rest = outputs.as_mut_slice();
        let (mut columns, mut sources) = (SmallVec::<[Columns<'_>; 16]>::new(), SmallVec::<[&[f32]; 16]>::new());
        let mut unread = products.as_slice();
        for unit in units {
            let (own, others) = std::mem::take(&mut rest).split_at_mut(unit.rows.len() * self.hidden_size);
            rest = others;
            columns.push(Columns::new(own, self.hidden_size));
            let (own, others) = unread.split_at(unit.rows.len() * unit.down.cols());
            unread = others;
            sources.push(own);
        }
        let isa = self.model.isa;
        inputs.clear();
        let mut places = SmallVec::<[Option<usize>; 16]>::new();
        for (unit, x) in units.iter().zip(&sources) {
            places.push(prepare(pool, isa, inputs, unit.down, x, self.model.fast(InputBits::Eight))?);
        }
        let shape = self.item_shape(pool, units);
        pool.run_grid(&columns, shape, 1, |scratch, index, tile| {
            let source = Source { x: sources[index], packed: places[index].map(|place| inputs.rows(place)) };
            Weight { view: units[index].down, bias: None }.run_tile(isa, scratch, source, tile);
        })?;
        Ok(())
    }

    /// Adds up every position's rows, best choice first, then the shared expert.
    fn combine(&self, pool: &mut Pool, buffers: &mut MoeBuffers, out: &mut [f32]) -> Result<(), ModelError> {
        let MoeBuffers { choices, places, outputs, shared_gate, .. } = buffers;
        let (isa, width, top_k) = (self.model.isa, self.hidden_size, self.op.top_k);
        let gate = self.op.shared.and_then(|shared| shared.gate);
        if let Some(gate) = gate {
            shared_gate.resize(width, 0.0);
            self.model.matrix(gate).decode_row(0, shared_gate);
        }
        pool.run_parts(out, width, 1, |_, token, y| {
            y.fill(0.0);
            for index in token * top_k..(token + 1) * top_k {
                isa.add_scaled(y, choices[index].weight, &outputs[places[index] * width..][..width]);
            }
            if self.op.shared.is_some() {
                let x = &self.input[token * width..][..width];
                let factor = if gate.is_some() { sigmoid(isa.dot(shared_gate, x)) } else { 1.0 };
                isa.add_scaled(y, factor, &outputs[(choices.len() + token) * width..][..width]);
            }
        })?;
        Ok(())
    }
}

/// Some columns of `act(gate x) * (up x)`, the tile's rows of the expert.
fn gate_up_tile([gate, up]: [Product<'_>; 2], activation: Activation, scratch: &mut Scratch, mut tile: ColumnTile<'_>) {
    let (count, n) = (tile.count, tile.rows());
    let (rows, tokens) = (tile.first..tile.first + count, tile.first_row..tile.first_row + n);
    let wanted = gate.scratch(count, n).max(up.scratch(count, n));
    let buffer = Scratch::sized(&mut scratch.rows, 2 * count * n + wanted);
    let (sums, rest) = buffer.split_at_mut(2 * count * n);
    let (gates, ups) = sums.split_at_mut(count * n);
    gate.run(rows.clone(), tokens.clone(), gates, rest);
    up.run(rows, tokens, ups, rest);
    activate(gate.isa, activation, gates, ups);
    for (t, product) in gates.chunks_exact(count).enumerate() {
        tile.row(t).copy_from_slice(product);
    }
}

#[cfg(test)]
mod tests;
