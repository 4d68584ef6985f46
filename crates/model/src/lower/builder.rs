//! Collects the parts of a program and checks every tensor that it takes in.

use std::collections::HashMap;

use crate::weights::vector_values;
use crate::{
    LinearPart, MatrixDecl, MatrixId, ModelError, ModelSpec, NormSpec, Op, Program, RopeId, RopeSpec, RopeTable, Slot,
    SlotDecl, StateDecl, StateId, VectorId, Weights,
};

/// A program under construction.
pub(super) struct Builder<'a> {
    pub(super) program: Program,
    weights: &'a dyn Weights,
    matrices: HashMap<String, MatrixId>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(spec: &ModelSpec, weights: &'a dyn Weights) -> Self {
        let program = Program::empty(spec.hidden_size, spec.vocab_size, spec.max_position_embeddings);
        Self { program, weights, matrices: HashMap::new() }
    }

    pub(super) fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    /// The slot of that name and width; layers share slots, since they run one after the other.
    pub(super) fn slot(&mut self, name: &'static str, width: usize) -> Slot {
        let decl = SlotDecl { name, width };
        let found = self.program.slots.iter().position(|slot| *slot == decl);
        Slot(found.unwrap_or_else(|| {
            self.program.slots.push(decl);
            self.program.slots.len() - 1
        }))
    }

    fn shape_error(&self, name: &str, found: &[u32], expected: Vec<usize>) -> ModelError {
        ModelError::Shape { name: name.to_owned(), found: found.to_vec(), expected }
    }

    /// A matrix `[rows, cols]`, entered once however often it is used.
    pub(super) fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixId, ModelError> {
        let tensor = self.weights.find(name).ok_or_else(|| ModelError::MissingTensor(name.to_owned()))?;
        let shape = self.weights.shape(tensor)?;
        if !matches!(shape, &[r, c] if (r as usize, c as usize) == (rows, cols)) {
            return Err(self.shape_error(name, shape, vec![rows, cols]));
        }
        if let Some(&id) = self.matrices.get(name) {
            return Ok(id);
        }
        let dtype = self.weights.dtype(tensor)?;
        let id = MatrixId(self.program.matrices.len());
        self.program.matrices.push(MatrixDecl { tensor, name: name.to_owned(), dtype, rows, cols });
        self.matrices.insert(name.to_owned(), id);
        Ok(id)
    }

    /// A vector `[len]` with `offset` added to every value.
    pub(super) fn vector(&mut self, name: &str, len: usize, offset: f32) -> Result<VectorId, ModelError> {
        self.vector_as(name, &[len], offset)
    }

    /// A tensor of `shape`, dimensions of 1 left aside, as one flat vector with `offset` added to every value.
    pub(super) fn vector_as(&mut self, name: &str, shape: &[usize], offset: f32) -> Result<VectorId, ModelError> {
        let tensor = self.weights.find(name).ok_or_else(|| ModelError::MissingTensor(name.to_owned()))?;
        let found = self.weights.shape(tensor)?;
        let squeezed = |dims: &mut dyn Iterator<Item = usize>| dims.filter(|&d| d != 1).collect::<Vec<_>>();
        if squeezed(&mut found.iter().map(|&d| d as usize)) != squeezed(&mut shape.iter().copied()) {
            return Err(self.shape_error(name, found, shape.to_vec()));
        }
        let values = vector_values(self.weights, tensor, name)?;
        self.program.vectors.push(values.into_iter().map(|w| w + offset).collect());
        Ok(VectorId(self.program.vectors.len() - 1))
    }

    /// A vector that is in no file.
    pub(super) fn constant(&mut self, values: Vec<f32>) -> VectorId {
        self.program.vectors.push(values);
        VectorId(self.program.vectors.len() - 1)
    }

    pub(super) fn norm(&mut self, spec: &NormSpec, input: Slot, out: Slot) -> Result<(), ModelError> {
        let width = self.program.slots[input.0].width;
        let weight = self.vector(&spec.weight, width, spec.offset)?;
        self.push(Op::Norm { input, weight, eps: spec.eps, out });
        Ok(())
    }

    /// `{module}.weight` as `[out.width, cols]` and `{module}.bias` where it exists.
    pub(super) fn linear(&mut self, module: &str, cols: usize, out: Slot) -> Result<LinearPart, ModelError> {
        let rows = self.program.slots[out.0].width;
        let weight = self.matrix(&format!("{module}.weight"), rows, cols)?;
        let bias_name = format!("{module}.bias");
        let bias = match self.weights.find(&bias_name) {
            Some(_) => Some(self.vector(&bias_name, rows, 0.0)?),
            None => None,
        };
        Ok(LinearPart { weight, bias, out })
    }

    pub(super) fn rope(&mut self, spec: &RopeSpec) -> Result<RopeId, ModelError> {
        let table = RopeTable::new(spec)?;
        let found = self.program.ropes.iter().position(|known| *known == table);
        Ok(RopeId(found.unwrap_or_else(|| {
            self.program.ropes.push(table);
            self.program.ropes.len() - 1
        })))
    }

    pub(super) fn state(&mut self, decl: StateDecl) -> StateId {
        self.program.states.push(decl);
        StateId(self.program.states.len() - 1)
    }
}
