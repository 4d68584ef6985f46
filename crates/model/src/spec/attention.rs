//! Attention: grouped-query and multi-head latent.

use cortiq_cmf::RopeScaling;

use super::{NormSpec, Reader};
use crate::{ModelError, Pairing};

/// Rotary embedding of an attention layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// Leading dimensions of a head that form pairs; even.
    pub dims: usize,
    /// Pairs that turn; the others have frequency 0.
    pub turning_pairs: usize,
    /// Base of the frequencies.
    pub theta: f64,
    /// Scaling for long contexts.
    pub scaling: Option<RopeScaling>,
    /// Longest context the model was made for.
    pub max_positions: usize,
    /// Which dimensions are rotated together.
    pub pairing: Pairing,
}

/// What a norm of queries or keys takes together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NormSpan {
    /// Each head alone, all with the same weight.
    Head,
    /// All heads at once, with a weight for each dimension of each.
    AllHeads,
}

/// Norms of queries and keys, before rotation.
#[derive(Clone, Debug, PartialEq)]
pub struct QkNormSpec {
    /// Norm of the queries.
    pub q: NormSpec,
    /// Norm of the keys.
    pub k: NormSpec,
    /// What they take together.
    pub span: NormSpan,
}

/// Grouped-query attention.
#[derive(Clone, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Prefix of its tensors, `model.layers.3.self_attn`.
    pub prefix: String,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Norms of queries and keys.
    pub qk_norm: Option<QkNormSpec>,
    /// Epsilon of a norm without weight on each value head.
    pub value_norm: Option<f64>,
    /// Rotary embedding; none in layers without positions.
    pub rope: Option<RopeSpec>,
    /// A query at `i` sees keys `j` with `i - window < j <= i`.
    pub window: Option<usize>,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `c * tanh(scores / c)`.
    pub softcap: Option<f32>,
    /// `q_proj` gives per head `[query | gate]`; the output is multiplied by `sigmoid(gate)`.
    pub output_gate: bool,
}

/// Multi-head latent attention (DeepSeek-V2): keys and values come from one compressed row per position, and a
/// rotated part of the key is shared by all heads.
#[derive(Clone, Debug, PartialEq)]
pub struct MlaSpec {
    /// Prefix of its tensors.
    pub prefix: String,
    /// Query heads.
    pub heads: usize,
    /// Rank of the compressed queries with their norm; none when they are projected directly.
    pub q_rank: Option<(usize, NormSpec)>,
    /// Rank of the compressed row.
    pub kv_rank: usize,
    /// Norm of the compressed row.
    pub kv_norm: NormSpec,
    /// Unrotated part of a query or key.
    pub nope_dim: usize,
    /// Rotated part.
    pub rope_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Rotary embedding of the rotated part.
    pub rope: RopeSpec,
    /// Factor on the scores.
    pub scale: f32,
}

impl Reader<'_> {
    /// Whether layer `index` looks through the window. The prediction head (no index) never does.
    fn slides(&self, index: Option<usize>) -> bool {
        let Some(index) = index else { return false };
        match (&self.arch.sliding_layers, self.arch.sliding_window_pattern) {
            (Some(layers), _) => layers.get(index) == Some(&true),
            (None, Some(pattern)) => !(index + 1).is_multiple_of(pattern),
            (None, None) => self.arch.sliding_window.is_some(),
        }
    }

    pub(super) fn attention(&self, index: Option<usize>, layer: &str) -> Result<AttentionSpec, ModelError> {
        let arch = self.arch;
        let prefix = format!("{layer}.self_attn");
        let slides = self.slides(index);
        // Gemma 4: global layers have a geometry of their own.
        let global = !slides && arch.sliding_window.is_some();
        let heads = arch.num_attention_heads;
        let head_dim = arch.global_head_dim.filter(|_| global).unwrap_or(arch.head_dim);
        let kv_heads = arch.num_global_kv_heads.filter(|_| global).unwrap_or(arch.num_kv_heads);
        let q_rows = self.rows(&format!("{prefix}.q_proj.weight"))?;
        Ok(AttentionSpec {
            qk_norm: self.qk_norm(&prefix, heads * head_dim)?,
            value_norm: arch.attn_v_norm.then_some(arch.rms_norm_eps),
            rope: self.rotates(index).then(|| self.rope(head_dim, slides)).transpose()?,
            window: arch.sliding_window.filter(|_| slides),
            scale: (1.0 / arch.query_pre_attn_scalar.unwrap_or(head_dim as f64).sqrt()) as f32,
            softcap: arch.attn_logit_softcapping.map(|c| c as f32),
            output_gate: arch.global_head_dim.is_none() && q_rows == 2 * heads * head_dim,
            prefix,
            heads,
            kv_heads,
            head_dim,
        })
    }

    fn rotates(&self, index: Option<usize>) -> bool {
        let (Some(layers), Some(index)) = (&self.arch.rope_layers, index) else { return true };
        layers.get(index) == Some(&true)
    }

    fn qk_norm(&self, prefix: &str, all_heads: usize) -> Result<Option<QkNormSpec>, ModelError> {
        let (q, k) = (format!("{prefix}.q_norm.weight"), format!("{prefix}.k_norm.weight"));
        if !self.has(&q) && !self.has(&k) {
            return Ok(None);
        }
        let wide = self.arch.num_attention_heads > 1 && self.rows(&q)? == all_heads;
        let span = if wide { NormSpan::AllHeads } else { NormSpan::Head };
        self.rows(&k)?;
        Ok(Some(QkNormSpec { q: self.norm(q), k: self.norm(k), span }))
    }

    /// Rotary embedding of a layer; windowed layers may have a base of their own, which is never scaled.
    fn rope(&self, head_dim: usize, slides: bool) -> Result<RopeSpec, ModelError> {
        let arch = self.arch;
        let (theta, scaling) = match arch.rope_local_base_freq {
            Some(local) if slides => (local, None),
            _ => (arch.rope_theta, arch.rope_scaling.clone()),
        };
        let pairing = if arch.rope_interleaved { Pairing::Interleaved } else { Pairing::Halves };
        let max_positions = arch.max_position_embeddings;
        let whole = |dims, turning_pairs| RopeSpec { dims, turning_pairs, theta, scaling, max_positions, pairing };
        match arch.global_partial_rotary_factor {
            // The pairs span the whole head, but only the first ones turn (behaviour.md §2).
            Some(factor) if arch.global_head_dim == Some(head_dim) && !slides => {
                Ok(whole(head_dim - head_dim % 2, (head_dim as f32 * factor) as usize / 2))
            }
            _ => {
                let dims = ((head_dim as f32 * arch.partial_rotary_factor) as usize).max(2);
                if !dims.is_multiple_of(2) || dims > head_dim {
                    let reason = format!("{dims} of {head_dim} dimensions would rotate");
                    return Err(ModelError::Header { field: "partial_rotary_factor", reason });
                }
                Ok(whole(dims, dims / 2))
            }
        }
    }

    pub(super) fn mla(&self, index: usize, layer: &str) -> Result<MlaSpec, ModelError> {
        let arch = self.arch;
        let Some(mla) = arch.mla else { return Err(ModelError::Unsupported(format!("layer {index} has no `mla`"))) };
        let prefix = format!("{layer}.self_attn");
        let (nope_dim, rope_dim) = (mla.qk_nope_head_dim, mla.qk_rope_head_dim);
        if rope_dim == 0 || !rope_dim.is_multiple_of(2) {
            let reason = format!("`qk_rope_head_dim` is {rope_dim}, rotation needs pairs");
            return Err(ModelError::Header { field: "mla", reason });
        }
        let q_norm = self.norm(format!("{prefix}.q_a_layernorm.weight"));
        Ok(MlaSpec {
            heads: arch.num_attention_heads,
            q_rank: mla.q_lora_rank.map(|rank| (rank, q_norm)),
            kv_rank: mla.kv_lora_rank,
            kv_norm: self.norm(format!("{prefix}.kv_a_layernorm.weight")),
            nope_dim,
            rope_dim,
            value_dim: mla.v_head_dim,
            rope: RopeSpec {
                dims: rope_dim,
                turning_pairs: rope_dim / 2,
                theta: arch.rope_theta,
                scaling: arch.rope_scaling.clone(),
                max_positions: arch.max_position_embeddings,
                pairing: if arch.rope_interleaved { Pairing::Interleaved } else { Pairing::Halves },
            },
            scale: (latent_magnitude(arch.rope_scaling.as_ref()).powi(2) / ((nope_dim + rope_dim) as f64).sqrt())
                as f32,
            prefix,
        })
    }
}

/// `0.1 * mscale_all_dim * ln(factor) + 1`: DeepSeek scales the scores by its square.
fn latent_magnitude(scaling: Option<&RopeScaling>) -> f64 {
    match scaling {
        Some(RopeScaling::Yarn { factor, mscale_all_dim: Some(all), .. }) if *factor > 1.0 => {
            0.1 * all * factor.ln() + 1.0
        }
        _ => 1.0,
    }
}
