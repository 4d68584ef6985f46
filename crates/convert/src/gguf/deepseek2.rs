//! Architecture `deepseek2` with the router of DeepSeek V3: multi-head latent attention and experts.
//!
//! Rotated pairs are neighbours, in files as in the original checkpoints. Newer files have the projection of keys and
//! values as `attn_k_b`, transposed per head, and `attn_v_b`; older ones have `attn_kv_b` and other head widths.
//! DeepSeek V2, whose router is a softmax with groups of another kind, has the same architecture name; it is refused.

use cortiq_cmf::{Mla, NormStyle};

use super::GgufError;
use super::block::{self, Norms, Parts};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;
use super::plan::{Block, Values};
use super::{moe, rope};

pub(super) const FAMILY: Family = Family {
    arch: "deepseek2",
    heads: HeadKeys::Latent,
    reads: &[
        "expert_count",
        "expert_used_count",
        "expert_shared_count",
        "expert_gating_func",
        "expert_weights_scale",
        "expert_group_count",
        "leading_dense_block_count",
        "attention.q_lora_rank",
        "attention.kv_lora_rank",
    ],
    build,
};

/// Added to the sum of the selected weights, as in the original model.
const TOPK_EPS: f64 = 1e-20;
/// Epsilon of the original model's norms inside the attention.
const LATENT_EPS: f64 = 1e-6;

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let keys = &source.keys;
    source.keys.refuse_window()?;
    if source.hyper.eps != LATENT_EPS {
        let key = keys.key("attention.layer_norm_rms_epsilon");
        return Err(GgufError::unsupported_key(key, source.hyper.eps, "the latent norms have 1e-6, as all must"));
    }
    let mut notes = Vec::new();
    let mla = read_mla(source)?;
    let mut moe = moe::read(source, &moe::Defaults { norm: false, sigmoid: false, ffn_width: false })?;
    if let Some(moe) = &mut moe {
        if !moe.router_sigmoid {
            let key = keys.key("expert_gating_func");
            return Err(GgufError::unsupported_key(key, "softmax", "the router of DeepSeek V3 is"));
        }
        moe.norm_topk_eps = Some(TOPK_EPS);
        (moe.n_group, moe.topk_group) = read_groups(source, moe.num_experts, moe.top_k, &mut notes)?.unzip();
    }
    let mut arch = source.arch("deepseek_v3", source.ffn()?, rope::with_mscale(keys.metadata, keys.arch)?);
    // RoPE turns all of its part of the head, which `mla` says.
    arch.partial_rotary_factor = 1.0;
    arch.mla = Some(mla);
    arch.rope_interleaved = true;
    let mut plan = source.plan("output_norm.weight", NormStyle::Qwen);
    let parts = Parts { norms: Norms::Pre, ..Parts::default() };
    for layer in 0..source.hyper.layers {
        let mut block = plan.block(layer, format!("model.layers.{layer}."));
        attention(source, &mut block, &mla);
        block::norms(source, &mut block, &parts);
        block::feed_forward(source, &mut block, &parts, moe.as_ref())?;
    }
    arch.moe = moe;
    Ok(Model { arch, plan, notes })
}

fn read_mla(source: &Source<'_>) -> Result<Mla, GgufError> {
    let (keys, hyper) = (&source.keys, &source.hyper);
    let value = match keys.optional_size("attention.value_length_mla")? {
        Some(width) => width,
        None => keys.size("attention.value_length")?,
    };
    let rope = keys.size("rope.dimension_count")?;
    match hyper.head_dim.checked_sub(rope) {
        Some(nope) if nope > 0 => Ok(Mla {
            q_lora_rank: match keys.count("attention.q_lora_rank")? {
                0 => None,
                rank => Some(rank),
            },
            kv_lora_rank: keys.size("attention.kv_lora_rank")?,
            qk_nope_head_dim: nope,
            qk_rope_head_dim: rope,
            v_head_dim: value,
        }),
        _ => {
            let reason = format!("{rope} of {} dimensions leave nothing that is not rotated", hyper.head_dim);
            Err(GgufError::bad_key(keys.key("rope.dimension_count"), reason))
        }
    }
}

/// The groups of the selection; `None` when all groups may be selected. Files of early converters have no such keys.
fn read_groups(
    source: &Source<'_>,
    num_experts: usize,
    top_k: usize,
    notes: &mut Vec<String>,
) -> Result<Option<(usize, usize)>, GgufError> {
    let keys = &source.keys;
    let (count_key, used_key) = ("expert_group_count", "expert_group_used_count");
    let groups = keys.count(count_key)?;
    let used = keys.count(used_key)?;
    if groups == 0 {
        notes.push(format!("`{}` is missing: experts are selected without groups", keys.key(count_key)));
        return Ok(None);
    }
    if used == 0 {
        return Err(GgufError::missing_key(keys.key(used_key)));
    }
    if used >= groups {
        return Ok(None);
    }
    let size = num_experts / groups;
    if !num_experts.is_multiple_of(groups) || size < 2 {
        let reason = format!("{num_experts} experts do not make {groups} groups of equal size, 2 at least");
        return Err(GgufError::bad_key(keys.key(count_key), reason));
    }
    if used * size < top_k {
        let reason = format!("{used} groups of {size} experts are fewer than {top_k}");
        return Err(GgufError::bad_key(keys.key(used_key), reason));
    }
    Ok(Some((groups, used)))
}

fn attention(source: &Source<'_>, block: &mut Block<'_>, mla: &Mla) {
    let (hidden, heads) = (source.hidden(), source.hyper.heads as u64);
    let [rank, nope, rope, value] =
        [mla.kv_lora_rank, mla.qk_nope_head_dim, mla.qk_rope_head_dim, mla.v_head_dim].map(|n| n as u64);
    let queries = heads * (nope + rope);
    match mla.q_lora_rank {
        None => {
            block.add("attn_q.weight", "self_attn.q_proj.weight", &[queries, hidden]);
        }
        Some(q_rank) => {
            let q_rank = q_rank as u64;
            block.add("attn_q_a.weight", "self_attn.q_a_proj.weight", &[q_rank, hidden]);
            block.norm("attn_q_a_norm", "self_attn.q_a_layernorm", q_rank, false);
            block.add("attn_q_b.weight", "self_attn.q_b_proj.weight", &[queries, q_rank]);
        }
    }
    block.add("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight", &[rank + rope, hidden]);
    block.norm("attn_kv_a_norm", "self_attn.kv_a_layernorm", rank, false);
    let (name, shape) = ("self_attn.kv_b_proj.weight", [heads * (nope + value), rank]);
    if source.has(&format!("{}attn_kv_b.weight", block.gguf)) {
        block.add("attn_kv_b.weight", name, &shape);
    } else {
        let values = format!("{}attn_v_b.weight", block.gguf);
        let both = block.add("attn_k_b.weight", name, &shape);
        both.stored(&[heads, rank, nope]).values(Values::LatentKv { heads, rank, nope, value });
        both.also = Some((values, vec![heads, value, rank]));
    }
    block.add("attn_output.weight", "self_attn.o_proj.weight", &[hidden, heads * value]);
}
