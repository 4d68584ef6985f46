//! Rules on the header's values, docs/cmf-format.md §13.2.

use super::{GenerationDefaults, Header, KNOWN_EXTENSIONS, ModelArch, Moe, RopeScaling};
use crate::CmfError;

/// Most layers.
pub const MAX_LAYERS: usize = 1 << 16;
/// Widest residual stream, FFN or expert.
pub const MAX_HIDDEN: usize = 1 << 24;
/// Most heads of any kind.
pub const MAX_HEADS: usize = 1 << 16;
/// Widest head.
pub const MAX_HEAD_DIM: usize = 1 << 16;
/// Largest vocabulary.
pub const MAX_VOCAB: usize = 1 << 28;
/// Longest context and largest window, in tokens.
pub const MAX_POSITIONS: usize = 1 << 31;
/// Most experts per layer.
pub const MAX_EXPERTS: usize = 1 << 20;
/// Most shards: the file name has five digits.
pub(crate) const MAX_SHARDS: usize = 99_999;

impl Header {
    /// Checks every value that a later calculation relies on. [`crate::CmfFile`] and
    /// [`crate::CmfWriter`] call it; rules that involve other sections are checked there.
    ///
    /// # Errors
    /// The variant of the broken rule, see docs/cmf-format.md §13.2.
    pub fn check(&self) -> Result<(), CmfError> {
        if self.format != "cmf" {
            return Err(CmfError::WrongFormatName(self.format.clone()));
        }
        if self.version != 2 {
            return Err(CmfError::WrongHeaderVersion(self.version));
        }
        self.check_extensions()?;
        self.arch.check()?;
        if let Some(shard) = &self.shard
            && !(1 <= shard.no && shard.no <= shard.count && shard.count <= MAX_SHARDS)
        {
            return Err(CmfError::ShardCoordinates { no: shard.no, count: shard.count });
        }
        if let Some(calibration) = &self.calibration {
            positive("calibration.temperature", f64::from(calibration.temperature))?;
            finite("calibration.ece_before", calibration.ece_before.unwrap_or(0.0))?;
            finite("calibration.ece_after", calibration.ece_after.unwrap_or(0.0))?;
        }
        self.generation.as_ref().map_or(Ok(()), check_generation)
    }

    fn check_extensions(&self) -> Result<(), CmfError> {
        for name in &self.extensions {
            if !KNOWN_EXTENSIONS.contains(&name.as_str()) {
                return Err(CmfError::UnknownExtension(name.clone()));
            }
        }
        for name in self.implied_extensions() {
            if !self.extensions.iter().any(|listed| listed == name) {
                return Err(CmfError::ExtensionNotListed(name));
            }
        }
        Ok(())
    }
}

impl ModelArch {
    fn check(&self) -> Result<(), CmfError> {
        at_most("arch.num_layers", self.num_layers, MAX_LAYERS)?;
        size("arch.hidden_size", self.hidden_size, MAX_HIDDEN)?;
        at_most("arch.intermediate_size", self.intermediate_size, MAX_HIDDEN)?;
        size("arch.num_attention_heads", self.num_attention_heads, MAX_HEADS)?;
        size("arch.num_kv_heads", self.num_kv_heads, MAX_HEADS)?;
        size("arch.head_dim", self.head_dim, MAX_HEAD_DIM)?;
        size("arch.vocab_size", self.vocab_size, MAX_VOCAB)?;
        at_most("arch.max_position_embeddings", self.max_position_embeddings, MAX_POSITIONS)?;
        if self.layer_types.len() != self.num_layers {
            return Err(CmfError::LayerTypesLength { num_layers: self.num_layers, found: self.layer_types.len() });
        }
        if let Some(sliding) = &self.sliding_layers
            && sliding.len() != self.num_layers
        {
            return Err(CmfError::SlidingLayersLength { num_layers: self.num_layers, found: sliding.len() });
        }
        if let Some(layers) = &self.rope_layers
            && layers.len() != self.num_layers
        {
            return Err(CmfError::RopeLayersLength { num_layers: self.num_layers, found: layers.len() });
        }
        self.check_optional_sizes()?;
        divisible("arch.num_kv_heads", self.num_attention_heads, self.num_kv_heads)?;
        if let Some(kv) = self.num_global_kv_heads {
            divisible("arch.num_global_kv_heads", self.num_attention_heads, kv)?;
        }
        self.check_reals()?;
        self.moe.as_ref().map_or(Ok(()), check_moe)?;
        self.rope_scaling.as_ref().map_or(Ok(()), check_rope)
    }

    fn check_optional_sizes(&self) -> Result<(), CmfError> {
        let core = self.linear_core.as_ref();
        let mla = self.mla.as_ref();
        let sizes = [
            ("arch.sliding_window", self.sliding_window, MAX_POSITIONS),
            ("arch.sliding_window_pattern", self.sliding_window_pattern, MAX_LAYERS),
            ("arch.global_head_dim", self.global_head_dim, MAX_HEAD_DIM),
            ("arch.num_global_kv_heads", self.num_global_kv_heads, MAX_HEADS),
            ("arch.linear_conv_kernel_dim", self.linear_conv_kernel_dim, MAX_HEAD_DIM),
            ("arch.linear_num_key_heads", self.linear_num_key_heads, MAX_HEADS),
            ("arch.linear_num_value_heads", self.linear_num_value_heads, MAX_HEADS),
            ("arch.linear_key_head_dim", self.linear_key_head_dim, MAX_HEAD_DIM),
            ("arch.linear_value_head_dim", self.linear_value_head_dim, MAX_HEAD_DIM),
            ("arch.linear_core.num_heads", core.map(|c| c.num_heads), MAX_HEADS),
            ("arch.linear_core.nphase", core.and_then(|c| c.nphase), MAX_HEAD_DIM),
            ("arch.linear_core.value_head_dim", core.map(|c| c.value_head_dim), MAX_HEAD_DIM),
            ("arch.mla.q_lora_rank", mla.and_then(|m| m.q_lora_rank), MAX_HIDDEN),
            ("arch.mla.kv_lora_rank", mla.map(|m| m.kv_lora_rank), MAX_HIDDEN),
            ("arch.mla.qk_nope_head_dim", mla.map(|m| m.qk_nope_head_dim), MAX_HEAD_DIM),
            ("arch.mla.qk_rope_head_dim", mla.map(|m| m.qk_rope_head_dim), MAX_HEAD_DIM),
            ("arch.mla.v_head_dim", mla.map(|m| m.v_head_dim), MAX_HEAD_DIM),
            ("arch.mtp.num_layers", self.mtp.as_ref().map(|m| m.num_layers), MAX_LAYERS),
        ];
        for (key, value, max) in sizes {
            if let Some(value) = value {
                size(key, value, max)?;
            }
        }
        Ok(())
    }

    fn check_reals(&self) -> Result<(), CmfError> {
        positive("arch.rms_norm_eps", self.rms_norm_eps)?;
        positive("arch.rope_theta", self.rope_theta)?;
        let optional = [
            ("arch.query_pre_attn_scalar", self.query_pre_attn_scalar),
            ("arch.rope_local_base_freq", self.rope_local_base_freq),
            ("arch.final_logit_softcapping", self.final_logit_softcapping),
            ("arch.attn_logit_softcapping", self.attn_logit_softcapping),
        ];
        for (key, value) in optional {
            if let Some(value) = value {
                positive(key, value)?;
            }
        }
        fraction("arch.partial_rotary_factor", self.partial_rotary_factor)?;
        if let Some(factor) = self.global_partial_rotary_factor {
            fraction("arch.global_partial_rotary_factor", factor)?;
        }
        finite("arch.embed_multiplier", self.embed_multiplier)
    }
}

fn check_generation(defaults: &GenerationDefaults) -> Result<(), CmfError> {
    // A temperature of 0 is greedy decoding.
    let temperature = defaults.temperature.unwrap_or(0.0);
    if !(temperature.is_finite() && temperature >= 0.0) {
        return Err(CmfError::OutOfRange {
            key: "generation.temperature",
            value: f64::from(temperature),
            range: "the finite numbers from 0",
        });
    }
    fraction("generation.top_p", defaults.top_p.unwrap_or(0.0))?;
    fraction("generation.min_p", defaults.min_p.unwrap_or(0.0))?;
    positive("generation.repetition_penalty", f64::from(defaults.repetition_penalty.unwrap_or(1.0)))
}

fn check_moe(moe: &Moe) -> Result<(), CmfError> {
    size("arch.moe.num_experts", moe.num_experts, MAX_EXPERTS)?;
    size("arch.moe.top_k", moe.top_k, MAX_EXPERTS)?;
    size("arch.moe.moe_intermediate_size", moe.moe_intermediate_size, MAX_HIDDEN)?;
    // 0 is how some configurations say that there is no shared expert.
    at_most("arch.moe.shared_expert_intermediate_size", moe.shared_expert_intermediate_size.unwrap_or(0), MAX_HIDDEN)?;
    if moe.top_k > moe.num_experts {
        return Err(CmfError::TopKTooLarge { top_k: moe.top_k, num_experts: moe.num_experts });
    }
    if let Some(groups) = moe.n_group {
        size("arch.moe.n_group", groups, moe.num_experts)?;
        size("arch.moe.topk_group", moe.topk_group.unwrap_or(groups), groups)?;
        if !moe.num_experts.is_multiple_of(groups) {
            return Err(CmfError::ExpertGroups { num_experts: moe.num_experts, n_group: groups });
        }
    }
    if let Some(eps) = moe.norm_topk_eps {
        positive("arch.moe.norm_topk_eps", eps)?;
    }
    match moe.routed_scaling_factor {
        Some(factor) => finite("arch.moe.routed_scaling_factor", factor),
        None => Ok(()),
    }
}

fn check_rope(scaling: &RopeScaling) -> Result<(), CmfError> {
    const ORIGINAL: &str = "arch.rope_scaling.original_max_position_embeddings";
    match scaling {
        RopeScaling::Linear { factor } => positive("arch.rope_scaling.factor", *factor),
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings } => {
            positive("arch.rope_scaling.factor", *factor)?;
            positive("arch.rope_scaling.low_freq_factor", *low_freq_factor)?;
            positive("arch.rope_scaling.high_freq_factor", *high_freq_factor)?;
            size(ORIGINAL, *original_max_position_embeddings, MAX_POSITIONS)
        }
        RopeScaling::Yarn {
            factor,
            original_max_position_embeddings,
            beta_fast,
            beta_slow,
            truncate: _,
            attention_factor,
            mscale,
            mscale_all_dim,
        } => {
            positive("arch.rope_scaling.factor", *factor)?;
            positive("arch.rope_scaling.beta_fast", *beta_fast)?;
            positive("arch.rope_scaling.beta_slow", *beta_slow)?;
            let optional = [
                ("arch.rope_scaling.attention_factor", attention_factor),
                ("arch.rope_scaling.mscale", mscale),
                ("arch.rope_scaling.mscale_all_dim", mscale_all_dim),
            ];
            for (key, value) in optional {
                // 0 is how some configurations say "not used".
                if let Some(value) = value
                    && *value != 0.0
                {
                    positive(key, *value)?;
                }
            }
            size(ORIGINAL, *original_max_position_embeddings, MAX_POSITIONS)
        }
        RopeScaling::LongRope { short_factor, long_factor, original_max_position_embeddings, attention_factor } => {
            if short_factor.is_empty() || short_factor.len() != long_factor.len() {
                return Err(CmfError::LongRopeFactors { short: short_factor.len(), long: long_factor.len() });
            }
            for factor in short_factor.iter().chain(long_factor) {
                positive("arch.rope_scaling.short_factor/long_factor", *factor)?;
            }
            if let Some(factor) = attention_factor {
                positive("arch.rope_scaling.attention_factor", *factor)?;
            }
            size(ORIGINAL, *original_max_position_embeddings, MAX_POSITIONS)
        }
    }
}

fn size(key: &'static str, value: usize, max: usize) -> Result<(), CmfError> {
    if value == 0 {
        return Err(CmfError::ZeroSize(key));
    }
    at_most(key, value, max)
}

fn at_most(key: &'static str, value: usize, max: usize) -> Result<(), CmfError> {
    if value > max {
        return Err(CmfError::SizeTooLarge { key, value: value as u64, max: max as u64 });
    }
    Ok(())
}

fn divisible(key: &'static str, heads: usize, kv_heads: usize) -> Result<(), CmfError> {
    match heads.checked_rem(kv_heads) {
        Some(0) => Ok(()),
        _ => Err(CmfError::HeadsNotDivisible { key, heads, kv_heads }),
    }
}

fn positive(key: &'static str, value: f64) -> Result<(), CmfError> {
    if value.is_finite() && value > 0.0 { Ok(()) } else { Err(CmfError::NotPositive { key, value }) }
}

fn fraction(key: &'static str, value: f32) -> Result<(), CmfError> {
    // Readers rotate at least two dimensions, whatever the fraction.
    if (0.0..=1.0).contains(&value) {
        Ok(())
    } else {
        Err(CmfError::OutOfRange { key, value: f64::from(value), range: "0..=1" })
    }
}

fn finite(key: &'static str, value: f32) -> Result<(), CmfError> {
    if value.is_finite() {
        Ok(())
    } else {
        Err(CmfError::OutOfRange { key, value: f64::from(value), range: "the finite numbers" })
    }
}
