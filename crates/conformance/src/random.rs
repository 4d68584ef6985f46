//! Small random models, so that shapes no fixture has are tested too.

use std::sync::Arc;

use cortiq_cmf::{Dtype, Header};
use cortiq_model::{NamedShape, OwnedTensor, OwnedWeights, tensors_of};
use cortiq_quant::{QuantError, random_payload};

/// A random model: header and weights.
pub struct RandomModel {
    /// Its description.
    pub header: Header,
    /// Its tensors, matrices in the dtype asked for.
    pub weights: Arc<OwnedWeights>,
}

/// A model of `shape` with random weights; matrices in `dtype`, or q8_2f where `dtype` cannot hold them; vectors f32
/// near 1. The same seed gives the same model.
///
/// # Panics
/// When a payload cannot be made.
#[allow(clippy::expect_used)]
pub fn random_model(shape: &NamedShape, dtype: Dtype, seed: u64) -> RandomModel {
    let mut weights = OwnedWeights::new();
    for (i, (name, dims)) in tensors_of(shape).into_iter().enumerate() {
        let seed = seed.wrapping_add(i as u64);
        let dims32: Vec<u32> = dims.iter().map(|&d| u32::try_from(d).expect("small shape")).collect();
        let tensor = match dims.as_slice() {
            &[rows, cols] => {
                let (dtype, bytes) = match random_payload(dtype, rows, cols, seed) {
                    Ok(bytes) => (dtype, bytes),
                    // The dtype cannot hold this width.
                    Err(QuantError::Shape { .. }) => {
                        (Dtype::Q8_2f, random_payload(Dtype::Q8_2f, rows, cols, seed).expect("random payload"))
                    }
                    Err(error) => panic!("random payload: {error}"),
                };
                OwnedTensor { dtype, shape: dims32, bytes }
            }
            _ => {
                let values = (0..dims[0]).map(|j| 1.0 + ((i * 31 + j * 17) % 13) as f32 / 40.0);
                OwnedTensor { dtype: Dtype::F32, shape: dims32, bytes: values.flat_map(f32::to_le_bytes).collect() }
            }
        };
        weights.insert(name, tensor);
    }
    RandomModel { header: shape.header(), weights: Arc::new(weights) }
}

/// A layer whose rows are wide enough for kernels that take several groups per thread, and no multiple of their steps.
pub const WIDE: NamedShape = NamedShape {
    name: "wide",
    num_layers: 1,
    hidden_size: 2176,
    heads: 4,
    kv_heads: 2,
    head_dim: 64,
    intermediate_size: 2304,
    vocab_size: 101,
    tied: false,
    qk_norm: true,
    rope_theta: 1e4,
    experts: None,
    delta: None,
};
