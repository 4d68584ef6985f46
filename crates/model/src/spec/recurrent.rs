//! Layers with a fixed-size state: gated delta net and short convolution.

use super::{NormSpec, Reader};
use crate::ModelError;

/// Gated delta net (Gated DeltaNet paper; layout docs/behaviour.md §2).
#[derive(Clone, Debug, PartialEq)]
pub struct GatedDeltaSpec {
    /// Prefix of its tensors, `model.layers.3.linear_attn`.
    pub prefix: String,
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads; a multiple of `key_heads`.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel: usize,
    /// Norm of each output head; its weight is used as it is, whatever the model's norm style.
    pub norm: NormSpec,
}

/// Short gated convolution (LFM2): `out_proj(C * conv(B * x))` with `[B | C | x] = in_proj(input)`.
#[derive(Clone, Debug, PartialEq)]
pub struct ShortConvSpec {
    /// Prefix of its tensors, `model.layers.3.short_conv`.
    pub prefix: String,
    /// Taps of the convolution.
    pub kernel: usize,
}

impl Reader<'_> {
    pub(super) fn gated_delta(&self, layer: &str) -> Result<GatedDeltaSpec, ModelError> {
        let arch = self.arch;
        let size = |field: &'static str, value: Option<usize>| match value {
            Some(value) if value > 0 => Ok(value),
            _ => Err(ModelError::Header { field, reason: "a gated delta net needs it".to_owned() }),
        };
        let core = arch.linear_core.as_ref();
        let value_heads = arch.linear_num_value_heads.or(core.map(|core| core.num_heads));
        let value_dim = arch.linear_value_head_dim.or(core.map(|core| core.value_head_dim));
        let key_heads = size("linear_num_key_heads", arch.linear_num_key_heads)?;
        let value_heads = size("linear_num_value_heads", value_heads)?;
        if !value_heads.is_multiple_of(key_heads) {
            let reason = format!("{value_heads} value heads cannot share {key_heads} key heads");
            return Err(ModelError::Header { field: "linear_num_value_heads", reason });
        }
        let prefix = format!("{layer}.linear_attn");
        let weight = format!("{prefix}.norm.weight");
        Ok(GatedDeltaSpec {
            key_heads,
            value_heads,
            key_dim: size("linear_key_head_dim", arch.linear_key_head_dim)?,
            value_dim: size("linear_value_head_dim", value_dim)?,
            conv_kernel: size("linear_conv_kernel_dim", arch.linear_conv_kernel_dim)?,
            norm: NormSpec { weight, eps: arch.rms_norm_eps, offset: 0.0 },
            prefix,
        })
    }

    pub(super) fn short_conv(&self, layer: &str) -> Result<ShortConvSpec, ModelError> {
        let prefix = format!("{layer}.short_conv");
        let name = format!("{prefix}.conv.weight");
        let shape = self.shape(&name)?;
        match shape.split_last() {
            Some((&kernel, rest)) if kernel > 0 && rest.iter().product::<usize>() == self.arch.hidden_size => {
                Ok(ShortConvSpec { prefix, kernel })
            }
            _ => Err(ModelError::Shape {
                name,
                found: shape.iter().map(|&d| u32::try_from(d).unwrap_or(u32::MAX)).collect(),
                expected: vec![self.arch.hidden_size, 1, 3],
            }),
        }
    }
}
