//! Header values that cannot be, and parts that no operation computes yet.

use cortiq_cmf::{LayerType, ModelArch};

use super::EMBEDDING;
use crate::{ModelError, Weights};

/// Checks the numbers that shapes and divisions rely on.
pub(super) fn numbers(arch: &ModelArch) -> Result<(), ModelError> {
    let invalid = |field, reason: String| Err(ModelError::Header { field, reason });
    for (field, value) in [
        ("hidden_size", arch.hidden_size),
        ("num_layers", arch.num_layers),
        ("num_attention_heads", arch.num_attention_heads),
        ("num_kv_heads", arch.num_kv_heads),
        ("head_dim", arch.head_dim),
        ("vocab_size", arch.vocab_size),
        ("max_position_embeddings", arch.max_position_embeddings),
        ("sliding_window", arch.sliding_window.unwrap_or(1)),
        ("sliding_window_pattern", arch.sliding_window_pattern.unwrap_or(1)),
    ] {
        if value == 0 {
            return invalid(field, "it is zero".to_owned());
        }
    }
    for (field, kv_heads) in [
        ("num_kv_heads", arch.num_kv_heads),
        ("num_global_kv_heads", arch.num_global_kv_heads.unwrap_or(arch.num_kv_heads)),
    ] {
        if kv_heads == 0 || !arch.num_attention_heads.is_multiple_of(kv_heads) {
            return invalid(field, format!("{} heads cannot share {kv_heads}", arch.num_attention_heads));
        }
    }
    for (field, entries) in [
        ("layer_types", Some(arch.layer_types.len())),
        ("sliding_layers", arch.sliding_layers.as_ref().map(Vec::len)),
        ("rope_layers", arch.rope_layers.as_ref().map(Vec::len)),
    ] {
        if let Some(entries) = entries
            && entries != arch.num_layers
        {
            return invalid(field, format!("{entries} entries for {} layers", arch.num_layers));
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
