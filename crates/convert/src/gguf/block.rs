//! The layer that most architectures share: grouped-query attention, a gated FFN or experts, norms around them.

use cortiq_cmf::{Moe, NormStyle};

use super::GgufError;
use super::decoder::{Model, Source};
use super::moe;
use super::plan::{Block, PairOrder, Plan, Rows};

/// In what a layer differs from the plain one.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parts {
    pub(super) norms: Norms,
    /// The file has 1 + the weights of the norms.
    pub(super) offset_norms: bool,
    /// Norms on q and k.
    pub(super) qk_norm: QkNorm,
    /// `attn_q` also gives a gate: per head `[query | gate]`.
    pub(super) gated: bool,
    /// RoPE turns neighbouring pairs, so that rows of q and k are stored reordered.
    pub(super) paired_rope: bool,
    /// `ffn_up` is `[gate | up]`.
    pub(super) fused_ffn: bool,
    /// The shared expert has a gate.
    pub(super) shared_gate: bool,
}

/// Where a layer has norms, and what they are called in the file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Norms {
    /// On the inputs: `attn_norm`, `ffn_norm`.
    #[default]
    Pre,
    /// On the inputs: `attn_norm`, `post_attention_norm`.
    PreByPosition,
    /// On inputs and outputs.
    Sandwich,
    /// On the outputs.
    Post,
}

/// Norms on q and k.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum QkNorm {
    #[default]
    None,
    /// Per head.
    Head,
    /// Over all heads at once.
    Wide,
}

/// A decoder of plain layers, all with a dense FFN and without a window.
pub(super) fn dense(source: &Source<'_>, arch_name: &str, parts: &Parts) -> Result<Model, GgufError> {
    source.keys.refuse_window()?;
    let mut plan = source.plan("output_norm.weight", NormStyle::Qwen);
    layers(source, &mut plan, parts, None)?;
    let arch = source.arch(arch_name, source.ffn()?, source.rope_scaling()?);
    Ok(Model { arch, plan, notes: Vec::new() })
}

/// As [`dense`], with experts in the layers that have a router.
pub(super) fn sparse(
    source: &Source<'_>,
    arch_name: &str,
    parts: &Parts,
    defaults: &moe::Defaults,
) -> Result<Model, GgufError> {
    source.keys.refuse_window()?;
    let moe = moe::read(source, defaults)?;
    let mut plan = source.plan("output_norm.weight", NormStyle::Qwen);
    layers(source, &mut plan, parts, moe.as_ref())?;
    let mut arch = source.arch(arch_name, source.ffn()?, source.rope_scaling()?);
    arch.moe = moe;
    Ok(Model { arch, plan, notes: Vec::new() })
}

/// Adds the layers of a decoder; those with a router have the experts `moe`.
pub(super) fn layers(source: &Source<'_>, plan: &mut Plan, parts: &Parts, moe: Option<&Moe>) -> Result<(), GgufError> {
    for layer in 0..source.hyper.layers {
        let mut block = plan.block(layer, format!("model.layers.{layer}."));
        attention_layer(source, &mut block, parts, moe)?;
    }
    Ok(())
}

/// Adds one layer with attention.
pub(super) fn attention_layer(
    source: &Source<'_>,
    block: &mut Block<'_>,
    parts: &Parts,
    moe: Option<&Moe>,
) -> Result<(), GgufError> {
    attention(source, block, parts);
    norms(source, block, parts);
    feed_forward(source, block, parts, moe)
}

/// Adds the norms of a layer.
pub(super) fn norms(source: &Source<'_>, block: &mut Block<'_>, parts: &Parts) {
    const INPUT: (&str, &str) = ("attn_norm", "input_layernorm");
    const ATTENTION_OUT: (&str, &str) = ("post_attention_norm", "post_attention_layernorm");
    const FFN_OUT: (&str, &str) = ("post_ffw_norm", "post_feedforward_layernorm");
    let names: &[(&str, &str)] = match parts.norms {
        Norms::Pre => &[INPUT, ("ffn_norm", "post_attention_layernorm")],
        Norms::PreByPosition => &[INPUT, ATTENTION_OUT],
        Norms::Sandwich => &[INPUT, ATTENTION_OUT, ("ffn_norm", "pre_feedforward_layernorm"), FFN_OUT],
        Norms::Post => &[ATTENTION_OUT, FFN_OUT],
    };
    for (gguf, name) in names {
        block.norm(gguf, name, source.hidden(), parts.offset_norms);
    }
}

fn attention(source: &Source<'_>, block: &mut Block<'_>, parts: &Parts) {
    let hyper = &source.hyper;
    let hidden = source.hidden();
    let (heads, kv_heads, head_dim) = (hyper.heads as u64, hyper.kv_heads as u64, hyper.head_dim as u64);
    let (values, kv) = (heads * head_dim, kv_heads * head_dim);
    let q = if parts.gated { 2 * values } else { values };
    // q, k and v in one matrix: always in some architectures, an option of the converter in others.
    if source.has(&format!("{}attn_qkv.weight", block.gguf)) && !parts.paired_rope {
        let total = q + 2 * kv;
        block.slice("attn_qkv.weight", "self_attn.q_proj.weight", 0..q, total, hidden);
        block.slice("attn_qkv.weight", "self_attn.k_proj.weight", q..q + kv, total, hidden);
        block.slice("attn_qkv.weight", "self_attn.v_proj.weight", q + kv..total, total, hidden);
    } else {
        let rows = |heads| match parts.paired_rope {
            true => Rows::Pairs(PairOrder { heads, head_dim, rotary_dim: hyper.rotary_dim as u64 }),
            false => Rows::All,
        };
        block.linear("attn_q", "self_attn.q_proj", q, hidden, &rows(heads));
        block.linear("attn_k", "self_attn.k_proj", kv, hidden, &rows(kv_heads));
        block.linear("attn_v", "self_attn.v_proj", kv, hidden, &Rows::All);
    }
    block.linear("attn_output", "self_attn.o_proj", hidden, values, &Rows::All);
    let (q_norm, k_norm) = match parts.qk_norm {
        QkNorm::None => return,
        QkNorm::Head => (head_dim, head_dim),
        QkNorm::Wide => (values, kv),
    };
    block.norm("attn_q_norm", "self_attn.q_norm", q_norm, parts.offset_norms);
    block.norm("attn_k_norm", "self_attn.k_norm", k_norm, parts.offset_norms);
}

/// Adds the experts if the file has a router in this block, else the dense FFN.
pub(super) fn feed_forward(
    source: &Source<'_>,
    block: &mut Block<'_>,
    parts: &Parts,
    moe: Option<&Moe>,
) -> Result<(), GgufError> {
    if let Some(moe) = moe.filter(|_| source.has(&format!("{}{}", block.gguf, moe::ROUTER))) {
        moe::plan(source, block, moe, parts.shared_gate);
        return Ok(());
    }
    let (hidden, ffn) = (source.hidden(), source.ffn()? as u64);
    if parts.fused_ffn {
        block.slice("ffn_up.weight", "mlp.gate_proj.weight", 0..ffn, 2 * ffn, hidden);
        block.slice("ffn_up.weight", "mlp.up_proj.weight", ffn..2 * ffn, 2 * ffn, hidden);
    } else {
        block.linear("ffn_gate", "mlp.gate_proj", ffn, hidden, &Rows::All);
        block.linear("ffn_up", "mlp.up_proj", ffn, hidden, &Rows::All);
    }
    block.linear("ffn_down", "mlp.down_proj", hidden, ffn, &Rows::All);
    Ok(())
}
