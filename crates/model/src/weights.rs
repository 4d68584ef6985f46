//! Where weights come from: a mapped file, owned bytes, or synthetic ones.

use std::collections::HashMap;
use std::sync::Arc;

use cortiq_cmf::{CmfFile, Dtype, f16_to_f32};

use crate::ModelError;

/// Index of a tensor within one [`Weights`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TensorId(pub usize);

/// Read access to named tensors. Payloads keep the layout of their dtype (docs/cmf-format.md §7).
///
/// An id must come from [`Weights::find`] of the same object.
pub trait Weights: Send + Sync {
    /// The tensor called `name`, if there is one.
    fn find(&self, name: &str) -> Option<TensorId>;
    /// Storage type of a tensor.
    fn dtype(&self, id: TensorId) -> Result<Dtype, ModelError>;
    /// Shape of a tensor, row-major, `[out, in]` for matrices.
    fn shape(&self, id: TensorId) -> Result<&[u32], ModelError>;
    /// Payload of a tensor. Cheap: it is called for every operation of every step.
    fn bytes(&self, id: TensorId) -> Result<&[u8], ModelError>;
}

/// Values of a vector stored as f32, f16 or bf16. `name` only serves the error text.
pub(crate) fn vector_values(weights: &dyn Weights, id: TensorId, name: &str) -> Result<Vec<f32>, ModelError> {
    let bytes = weights.bytes(id)?;
    let halves = bytes.as_chunks::<2>().0.iter().map(|b| u16::from_le_bytes(*b));
    match weights.dtype(id)? {
        Dtype::F32 => Ok(bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()),
        Dtype::F16 => Ok(halves.map(f16_to_f32).collect()),
        Dtype::Bf16 => Ok(halves.map(|h| f32::from_bits(u32::from(h) << 16)).collect()),
        other => Err(ModelError::VectorDtype { name: name.to_owned(), dtype: other.name() }),
    }
}

/// Weights of an open container, used in place, optionally with one of its skills laid over them.
pub struct MappedWeights {
    file: Arc<CmfFile>,
    skill: Option<String>,
}

impl MappedWeights {
    /// Weights of `file`; with `skill`, tensors of that skill replace their originals (docs/cmf-format.md §12).
    pub fn new(file: Arc<CmfFile>, skill: Option<String>) -> Self {
        Self { file, skill }
    }

    fn info(&self, id: TensorId) -> Result<&cortiq_cmf::TensorInfo, ModelError> {
        self.file.tensors().get(id.0).ok_or(ModelError::UnknownHandle { kind: "tensor", id: id.0 })
    }
}

impl Weights for MappedWeights {
    fn find(&self, name: &str) -> Option<TensorId> {
        self.file.find_with_skill(name, self.skill.as_deref()).map(TensorId)
    }

    fn dtype(&self, id: TensorId) -> Result<Dtype, ModelError> {
        Ok(self.info(id)?.dtype)
    }

    fn shape(&self, id: TensorId) -> Result<&[u32], ModelError> {
        Ok(&self.info(id)?.shape)
    }

    fn bytes(&self, id: TensorId) -> Result<&[u8], ModelError> {
        Ok(self.file.data(id.0)?)
    }
}

/// One tensor held in memory.
pub struct OwnedTensor {
    /// Storage type.
    pub dtype: Dtype,
    /// Row-major shape.
    pub shape: Vec<u32>,
    /// Payload in the dtype's layout.
    pub bytes: Vec<u8>,
}

/// Weights held in memory: built by tests, and by benchmarks of a named shape without a file.
#[derive(Default)]
pub struct OwnedWeights {
    tensors: Vec<OwnedTensor>,
    names: HashMap<String, usize>,
}

impl OwnedWeights {
    /// No tensors yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor, replacing one of the same name.
    pub fn insert(&mut self, name: impl Into<String>, tensor: OwnedTensor) {
        self.names.insert(name.into(), self.tensors.len());
        self.tensors.push(tensor);
    }

    fn get(&self, id: TensorId) -> Result<&OwnedTensor, ModelError> {
        self.tensors.get(id.0).ok_or(ModelError::UnknownHandle { kind: "tensor", id: id.0 })
    }
}

impl Weights for OwnedWeights {
    fn find(&self, name: &str) -> Option<TensorId> {
        self.names.get(name).copied().map(TensorId)
    }

    fn dtype(&self, id: TensorId) -> Result<Dtype, ModelError> {
        Ok(self.get(id)?.dtype)
    }

    fn shape(&self, id: TensorId) -> Result<&[u32], ModelError> {
        Ok(&self.get(id)?.shape)
    }

    fn bytes(&self, id: TensorId) -> Result<&[u8], ModelError> {
        Ok(&self.get(id)?.bytes)
    }
}
