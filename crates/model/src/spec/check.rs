//! Header values that cannot be, and parts that no operation computes yet.

use cortiq_cmf::{Header, LayerType, ModelArch};

use super::EMBEDDING;
use crate::{ModelError, Weights};

/// Checks the numbers that shapes and divisions rely on: those of the container, and that there is something to run.
pub(super) fn numbers(header: &Header) -> Result<(), ModelError> {
    header.check()?;
    let arch = &header.arch;
    for (field, value) in [("num_layers", arch.num_layers), ("max_position_embeddings", arch.max_position_embeddings)] {
        if value == 0 {
            return Err(ModelError::Header { field, reason: "it is zero".to_owned() });
        }
    }
    Ok(())
}

/// Refuses what the header asks for and no operation of the [`crate::Program`] does.
pub(super) fn refuse_unknown(arch: &ModelArch, weights: &dyn Weights) -> Result<(), ModelError> {
    if weights.find(EMBEDDING).is_none() {
        return Err(ModelError::MissingTensor(EMBEDDING.to_owned()));
    }
    let linear = arch.layer_types.contains(&LayerType::LinearAttention);
    match &arch.linear_core {
        Some(core) if linear && core.kind != "gated_delta_net" => {
            Err(ModelError::Unsupported(format!("the linear attention core `{}`", core.kind)))
        }
        _ => Ok(()),
    }
}
