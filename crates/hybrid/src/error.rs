//! Errors of this crate.

use cortiq_gpu::GpuError;
use cortiq_model::ModelError;
use thiserror::Error;

/// Why a model cannot be shared between a CPU and a GPU.
#[derive(Debug, Error)]
pub enum HybridError {
    /// A list of layers that cannot be read.
    #[error("`{0}` is no list of layers such as 0-19,30")]
    LayerList(String),
    /// A list of layers that names more than the model has.
    #[error("the list of layers names layer {layer}, the model has {layers}")]
    NoSuchLayer {
        /// The layer.
        layer: usize,
        /// How many there are.
        layers: usize,
    },
    /// A fault of the gpu executor.
    #[error(transparent)]
    Gpu(#[from] GpuError),
    /// A fault of the model or of the batch.
    #[error(transparent)]
    Model(#[from] ModelError),
}
