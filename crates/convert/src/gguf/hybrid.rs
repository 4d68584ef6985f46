//! What `qwen3next`, `qwen35` and `qwen35moe` share: gated delta net layers among gated attention layers, norms that
//! multiply by `1 + w` (see `gemma`), multi-token prediction as one more block.

use cortiq_cmf::{LayerType, LinearCore, Moe, Mtp, NormStyle};

use super::GgufError;
use super::block::{self, Norms, Parts, QkNorm};
use super::decoder::{Model, Source};
use super::plan::{Block, Values};

/// Rows of the tensors of the delta net.
pub(super) struct DeltaNet {
    pub(super) key_heads: u64,
    pub(super) value_heads: u64,
    pub(super) key_dim: u64,
    pub(super) value_dim: u64,
    taps: u64,
}

impl DeltaNet {
    fn read(source: &Source<'_>) -> Result<Self, GgufError> {
        let keys = &source.keys;
        let size = |name: &str| keys.size(name).map(|n| n as u64);
        let (key_heads, value_heads) = (size("ssm.group_count")?, size("ssm.time_step_rank")?);
        let inner = size("ssm.inner_size")?;
        if !value_heads.is_multiple_of(key_heads) || !inner.is_multiple_of(value_heads) {
            let reason = format!("{value_heads} heads do not fit ssm.group_count and ssm.inner_size");
            return Err(GgufError::bad_key(keys.key("ssm.time_step_rank"), reason));
        }
        Ok(Self {
            key_heads,
            value_heads,
            key_dim: size("ssm.state_size")?,
            value_dim: inner / value_heads,
            taps: size("ssm.conv_kernel")?,
        })
    }

    /// Value heads per key head.
    pub(super) fn group(&self) -> u64 {
        self.value_heads / self.key_heads
    }

    /// Rows of all values.
    pub(super) fn values(&self) -> u64 {
        self.value_heads * self.value_dim
    }

    /// Rows of all queries, or of all keys.
    pub(super) fn keys(&self) -> u64 {
        self.key_heads * self.key_dim
    }

    /// Rows of queries, keys and values: the channels of the convolution.
    pub(super) fn channels(&self) -> u64 {
        2 * self.keys() + self.values()
    }
}

/// Adds the projections of a delta net and its tensors per head, which the architectures store differently.
pub(super) type Projections = fn(&Source<'_>, &mut Block<'_>, &DeltaNet) -> Result<(), GgufError>;

/// The model. Layers with `ssm_a` are delta nets.
pub(super) fn model(
    source: &Source<'_>,
    arch_name: &str,
    moe: Option<Moe>,
    projections: Projections,
) -> Result<Model, GgufError> {
    source.keys.refuse_window()?;
    let delta = DeltaNet::read(source)?;
    let ffn = match &moe {
        // No layer needs to be dense; the experts' width is then the nominal one.
        Some(moe) => source.hyper.ffn.unwrap_or(moe.moe_intermediate_size),
        None => source.ffn()?,
    };
    let mut arch = source.arch(arch_name, ffn, source.rope_scaling()?);
    arch.norm_style = NormStyle::Gemma;
    arch.linear_core = Some(LinearCore {
        kind: "gated_delta_net".to_owned(),
        num_heads: delta.value_heads as usize,
        nphase: None,
        value_head_dim: delta.value_dim as usize,
    });
    arch.linear_conv_kernel_dim = Some(delta.taps as usize);
    arch.linear_num_key_heads = Some(delta.key_heads as usize);
    arch.linear_num_value_heads = Some(delta.value_heads as usize);
    arch.linear_key_head_dim = Some(delta.key_dim as usize);
    arch.linear_value_head_dim = Some(delta.value_dim as usize);
    let parts = Parts {
        norms: Norms::PreByPosition,
        offset_norms: true,
        qk_norm: QkNorm::Head,
        gated: true,
        shared_gate: true,
        ..Parts::default()
    };
    let mut plan = source.plan("output_norm.weight", NormStyle::Gemma);
    for (layer, kind) in arch.layer_types.iter_mut().enumerate() {
        let mut block = plan.block(layer, format!("model.layers.{layer}."));
        if source.has(&format!("blk.{layer}.ssm_a")) {
            *kind = LayerType::LinearAttention;
            delta_net(source, &mut block, &delta, projections)?;
            block::norms(source, &mut block, &parts);
            block::feed_forward(source, &mut block, &parts, moe.as_ref())?;
        } else {
            block::attention_layer(source, &mut block, &parts, moe.as_ref())?;
        }
    }
    if source.hyper.nextn > 0 {
        let mut block = plan.block(source.hyper.layers, "model.mtp.layers.0.".to_owned());
        block::attention_layer(source, &mut block, &parts, moe.as_ref())?;
        prediction(source, &mut plan.block(source.hyper.layers, "model.mtp.".to_owned()));
        arch.mtp = Some(Mtp { num_layers: 1, share_lm_head: true, share_embed: true });
    }
    arch.moe = moe;
    Ok(Model { arch, plan, notes: Vec::new() })
}

fn delta_net(
    source: &Source<'_>,
    block: &mut Block<'_>,
    delta: &DeltaNet,
    projections: Projections,
) -> Result<(), GgufError> {
    projections(source, block, delta)?;
    // The gated norm is plain, in files as well.
    block.norm("ssm_norm", "linear_attn.norm", delta.value_dim, false);
    Ok(())
}

/// `conv1d`, which files have without the middle dimension.
pub(super) fn convolution<'a>(block: &'a mut Block<'_>, delta: &DeltaNet) -> &'a mut super::plan::Planned {
    let (channels, taps) = (delta.channels(), delta.taps);
    block.add("ssm_conv1d.weight", "linear_attn.conv1d.weight", &[channels, 1, taps]).stored(&[channels, taps])
}

/// `A_log`, of which files have the decay rate.
pub(super) fn decay<'a>(block: &'a mut Block<'_>, delta: &DeltaNet) -> &'a mut super::plan::Planned {
    block.add("ssm_a", "linear_attn.A_log", &[delta.value_heads]).values(Values::LogOfNegated)
}

/// What the block of multi-token prediction has around its layer.
fn prediction(source: &Source<'_>, block: &mut Block<'_>) {
    let hidden = source.hidden();
    block.norm("nextn.enorm", "enorm", hidden, true);
    block.norm("nextn.hnorm", "hnorm", hidden, true);
    block.add("nextn.eh_proj.weight", "eh_proj.weight", &[hidden, 2 * hidden]);
    block.norm("nextn.shared_head_norm", "norm", hidden, true);
}
