//! ModelSpec → Program.

mod attention;
mod ffn;

use std::collections::HashMap;

use crate::spec::EMBEDDING;
use crate::weights::vector_values;
use crate::{
    FfnSpec, HeadOp, KvLayer, LinearPart, MatrixDecl, MatrixId, MixerSpec, ModelError, ModelSpec, NormSpec, Op,
    Program, RopeId, RopeSpec, RopeTable, Slot, SlotDecl, StateId, VectorId, Weights,
};

/// Lowers a whole model.
pub(crate) fn lower(spec: &ModelSpec, weights: &dyn Weights) -> Result<Program, ModelError> {
    let mut b = Builder::new(spec, weights);
    let residual = b.slot("residual", spec.hidden_size);
    let normed = b.slot("normed", spec.hidden_size);
    let branch = b.slot("branch", spec.hidden_size);

    let table = b.matrix(EMBEDDING, spec.vocab_size, spec.hidden_size)?;
    b.push(Op::Embed { table, scale: spec.embed_multiplier, out: residual });
    for layer in &spec.layers {
        b.norm(&layer.mixer_norm, residual, normed)?;
        match &layer.mixer {
            MixerSpec::Attention(attention) => attention::lower(&mut b, attention, normed, branch)?,
        }
        b.push(Op::Residual { add: branch, into: residual });
        b.norm(&layer.ffn_norm, residual, normed)?;
        match &layer.ffn {
            FfnSpec::Dense { prefix, intermediate_size, activation } => {
                ffn::lower(&mut b, prefix, *intermediate_size, *activation, normed, branch)?;
            }
        }
        b.push(Op::Residual { add: branch, into: residual });
    }
    b.norm(&spec.final_norm, residual, normed)?;
    let weight = b.matrix(spec.head, spec.vocab_size, spec.hidden_size)?;
    b.push(Op::Head(HeadOp { input: normed, weight, softcap: spec.final_softcap }));
    Ok(b.program)
}

/// Collects the parts of a program and checks every tensor that it takes in.
struct Builder<'a> {
    program: Program,
    weights: &'a dyn Weights,
    matrices: HashMap<String, MatrixId>,
}

impl<'a> Builder<'a> {
    fn new(spec: &ModelSpec, weights: &'a dyn Weights) -> Self {
        let program = Program {
            ops: Vec::new(),
            slots: Vec::new(),
            matrices: Vec::new(),
            vectors: Vec::new(),
            ropes: Vec::new(),
            kv_layers: Vec::new(),
            hidden_size: spec.hidden_size,
            vocab_size: spec.vocab_size,
            max_position_embeddings: spec.max_position_embeddings,
        };
        Self { program, weights, matrices: HashMap::new() }
    }

    fn push(&mut self, op: Op) {
        self.program.ops.push(op);
    }

    /// The slot of that name and width; layers share slots, since they run one after the other.
    fn slot(&mut self, name: &'static str, width: usize) -> Slot {
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
    fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<MatrixId, ModelError> {
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
    fn vector(&mut self, name: &str, len: usize, offset: f32) -> Result<VectorId, ModelError> {
        let tensor = self.weights.find(name).ok_or_else(|| ModelError::MissingTensor(name.to_owned()))?;
        let shape = self.weights.shape(tensor)?;
        if !matches!(shape, &[n] if n as usize == len) {
            return Err(self.shape_error(name, shape, vec![len]));
        }
        let values = vector_values(self.weights, tensor, name)?;
        self.program.vectors.push(values.into_iter().map(|w| w + offset).collect());
        Ok(VectorId(self.program.vectors.len() - 1))
    }

    fn norm(&mut self, spec: &NormSpec, input: Slot, out: Slot) -> Result<(), ModelError> {
        let width = self.program.slots[input.0].width;
        let weight = self.vector(&spec.weight, width, spec.offset)?;
        self.push(Op::Norm { input, weight, eps: spec.eps, out });
        Ok(())
    }

    /// `{module}.weight` as `[out.width, cols]` and `{module}.bias` where it exists.
    fn linear(&mut self, module: &str, cols: usize, out: Slot) -> Result<LinearPart, ModelError> {
        let rows = self.program.slots[out.0].width;
        let weight = self.matrix(&format!("{module}.weight"), rows, cols)?;
        let bias_name = format!("{module}.bias");
        let bias = match self.weights.find(&bias_name) {
            Some(_) => Some(self.vector(&bias_name, rows, 0.0)?),
            None => None,
        };
        Ok(LinearPart { weight, bias, out })
    }

    fn rope(&mut self, spec: &RopeSpec) -> Result<RopeId, ModelError> {
        let table = RopeTable::new(spec)?;
        let found = self.program.ropes.iter().position(|known| *known == table);
        Ok(RopeId(found.unwrap_or_else(|| {
            self.program.ropes.push(table);
            self.program.ropes.len() - 1
        })))
    }

    fn kv_layer(&mut self, kv_heads: usize, head_dim: usize) -> StateId {
        self.program.kv_layers.push(KvLayer { kv_heads, head_dim });
        StateId(self.program.kv_layers.len() - 1)
    }
}
