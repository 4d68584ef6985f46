//! Mixture of experts: the keys, and experts stacked in one tensor per kind of matrix.

use cortiq_cmf::Moe;

use super::GgufError;
use super::decoder::Source;
use super::plan::{Block, Rows};

/// The router of a block: where it is, there are experts.
pub(super) const ROUTER: &str = "ffn_gate_inp.weight";
/// Most experts of all layers together; bounds the list of tensors.
const MAX_EXPERTS: usize = 1 << 18;

/// Keys that [`read`] reads.
pub(super) const KEYS: [&str; 6] = [
    "expert_count",
    "expert_used_count",
    "expert_shared_count",
    "expert_gating_func",
    "expert_weights_scale",
    "leading_dense_block_count",
];

/// What an architecture's files leave unsaid.
pub(super) struct Defaults {
    /// The weights of the selected experts are normed.
    pub(super) norm: bool,
    /// The router's scores are sigmoids.
    pub(super) sigmoid: bool,
    /// The experts are as wide as `feed_forward_length` says.
    pub(super) ffn_width: bool,
}

/// Reads the keys of the experts; `None` when no block has a router.
pub(super) fn read(source: &Source<'_>, defaults: &Defaults) -> Result<Option<Moe>, GgufError> {
    let keys = &source.keys;
    let Some(first) = check_leading(source)? else { return Ok(None) };
    let num_experts = keys.size("expert_count")?;
    if num_experts > MAX_EXPERTS / (source.hyper.layers + source.hyper.nextn) {
        return Err(GgufError::bad_key(keys.key("expert_count"), format!("{num_experts} is too large")));
    }
    // The router is in the file, so that this bounds the number of experts by the file's length.
    let router = format!("blk.{first}.{ROUTER}");
    let expected = vec![num_experts as u64, source.hidden()];
    match source.shape_of(&router) {
        Some(found) if *found != *expected => {
            return Err(GgufError::Shape { name: router, expected, found: found.to_vec() });
        }
        _ => {}
    }
    let top_k = keys.size("expert_used_count")?;
    if top_k > num_experts {
        let reason = format!("{top_k} of {num_experts} experts cannot be used");
        return Err(GgufError::bad_key(keys.key("expert_used_count"), reason));
    }
    let width = match keys.optional_size("expert_feed_forward_length")? {
        Some(width) => width,
        None if defaults.ffn_width => source.ffn()?,
        None => return Err(GgufError::missing_key(keys.key("expert_feed_forward_length"))),
    };
    let router_sigmoid = match keys.count("expert_gating_func")? {
        0 => defaults.sigmoid,
        1 => false,
        2 => true,
        other => {
            let key = keys.key("expert_gating_func");
            return Err(GgufError::unsupported_key(key, other, "1 (softmax) and 2 (sigmoid) are"));
        }
    };
    let scale = keys.cap("expert_weights_scale")?.unwrap_or(1.0);
    let norm = keys.metadata.bool(&keys.key("expert_weights_norm"))?;
    Ok(Some(Moe {
        num_experts,
        top_k,
        moe_intermediate_size: width,
        norm_topk_prob: norm.unwrap_or(defaults.norm),
        shared_expert_intermediate_size: shared_width(source, first, width)?,
        router_sigmoid,
        routed_scaling_factor: (scale != 1.0).then_some(scale as f32),
        ..Moe::default()
    }))
}

/// The first block with a router, which must be the one that `leading_dense_block_count` says, if there is such a key.
fn check_leading(source: &Source<'_>) -> Result<Option<usize>, GgufError> {
    let key = source.keys.key("leading_dense_block_count");
    let first = (0..source.hyper.layers).find(|layer| source.has(&format!("blk.{layer}.{ROUTER}")));
    if let Some(leading) = source.keys.metadata.unsigned(&key)? {
        let found = first.unwrap_or(source.hyper.layers) as u64;
        if leading != found {
            let reason = format!("{leading} blocks are dense, but {found} have no `{ROUTER}`");
            return Err(GgufError::bad_key(key, reason));
        }
    }
    Ok(first)
}

/// Width of the shared expert, or of all of them side by side: a key, a number of experts, or the tensor in block
/// `first`, since older files have no key.
fn shared_width(source: &Source<'_>, first: usize, width: usize) -> Result<Option<usize>, GgufError> {
    let keys = &source.keys;
    let Some(&[rows, _]) = source.shape_of(&format!("blk.{first}.ffn_up_shexp.weight")) else { return Ok(None) };
    let counted = match keys.count("expert_shared_count")? {
        0 => None,
        count => Some(count * width),
    };
    match (keys.optional_size("expert_shared_feed_forward_length")?.or(counted), usize::try_from(rows)) {
        (Some(width), _) | (None, Ok(width)) => Ok(Some(width)),
        (None, Err(_)) => Err(GgufError::malformed("ffn_up_shexp.weight", "has too many rows")),
    }
}

/// Adds the experts of a block; `shared_gate` says that the shared expert has a gate.
pub(super) fn plan(source: &Source<'_>, block: &mut Block<'_>, moe: &Moe, shared_gate: bool) {
    let hidden = source.hidden();
    let (experts, width) = (moe.num_experts as u64, moe.moe_intermediate_size as u64);
    block.add(ROUTER, "mlp.gate.weight", &[experts, hidden]);
    if moe.router_sigmoid {
        block.add("exp_probs_b.bias", "mlp.expert_bias", &[experts]).optional();
    }
    let has = |gguf: &str| source.has(gguf);
    let (fused, stacked) = ("ffn_gate_up_exps.weight", "ffn_gate_exps.weight");
    if has(&format!("{}{fused}", block.gguf)) {
        // Of each expert, the rows of gate and then those of up.
        for (projection, half) in [("gate", 0), ("up", 1)] {
            for expert in 0..experts {
                let start = (2 * expert + half) * width;
                let name = format!("mlp.experts.{expert}.{projection}_proj.weight");
                block
                    .add(fused, &name, &[width, hidden])
                    .stored(&[experts, 2 * width, hidden])
                    .rows(Rows::Slice(start..start + width));
            }
        }
        stack(block, "ffn_down_exps.weight", "down", experts, [hidden, width]);
    } else if has(&format!("{}{stacked}", block.gguf)) {
        stack(block, stacked, "gate", experts, [width, hidden]);
        stack(block, "ffn_up_exps.weight", "up", experts, [width, hidden]);
        stack(block, "ffn_down_exps.weight", "down", experts, [hidden, width]);
    } else {
        // The first files with experts have one tensor for each.
        for (kind, shape) in [("gate", [width, hidden]), ("up", [width, hidden]), ("down", [hidden, width])] {
            for expert in 0..experts {
                let name = format!("mlp.experts.{expert}.{kind}_proj.weight");
                block.add(&format!("ffn_{kind}.{expert}.weight"), &name, &shape);
            }
        }
    }
    if let Some(shared) = moe.shared_expert_intermediate_size {
        let shared = shared as u64;
        if shared_gate {
            block.add("ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight", &[1, hidden]);
        }
        block.add("ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight", &[shared, hidden]);
        block.add("ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight", &[shared, hidden]);
        block.add("ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight", &[hidden, shared]);
    }
}

/// The matrices `[rows, columns]` of all experts in one tensor.
fn stack(block: &mut Block<'_>, gguf: &str, kind: &str, experts: u64, [rows, columns]: [u64; 2]) {
    for expert in 0..experts {
        block
            .add(gguf, &format!("mlp.experts.{expert}.{kind}_proj.weight"), &[rows, columns])
            .stored(&[experts, rows, columns])
            .rows(Rows::Slice(expert * rows..(expert + 1) * rows));
    }
}
