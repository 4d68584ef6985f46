//! DeepSeek V3: multi-head latent attention, experts selected in groups by sigmoid scores.

use cortiq_cmf::{Mla, ModelArch, Moe, Mtp};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Heads, INTERMEDIATE, Tensors};
use crate::hf::family::{Family, Layout, Mapping};
use crate::hf::moe::{self, MoeParts};
use crate::hf::rope::{self, RopeKind};

pub(crate) const FAMILY: Family = Family {
    name: "deepseek_v3",
    model_types: &["deepseek_v3"],
    architectures: &["DeepseekV3ForCausalLM"],
    read,
    rename,
};

/// Added to the sum of the selected weights (transformers, `route_tokens_to_experts`).
const TOPK_EPS: f64 = 1e-20;
/// Epsilon of the norms inside the attention, whatever `rms_norm_eps` is.
const LATENT_EPS: f64 = 1e-6;

/// `config.json` of the family.
struct DeepseekConfig {
    decoder: DecoderConfig,
    /// `q_lora_rank` (null: queries are projected directly), `kv_lora_rank` and the parts of a head.
    mla: Mla,
    /// Rotated pairs are neighbours.
    rope_interleave: bool,
    /// The experts and their router.
    moe: Moe,
    /// Layers at the beginning without experts.
    first_k_dense_replace: usize,
    /// Every how many layers after those one has experts.
    moe_layer_freq: usize,
    /// Layers of multi-token prediction behind the others.
    num_nextn_predict_layers: usize,
}

impl DeepseekConfig {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        check_variants(config)?;
        let mla = read_mla(config)?;
        let num_heads = config.required_int("num_attention_heads", 1..=1 << 14)?;
        // Keys and values are per head once they are expanded.
        let head_dim = mla.qk_nope_head_dim + mla.qk_rope_head_dim;
        let heads = Heads { num_heads, num_kv_heads: num_heads, head_dim };
        let rope = rope::parse(config, &[RopeKind::Yarn], decoder::max_positions(config)?)?;
        let intermediate_size = config.int("intermediate_size", INTERMEDIATE)?.unwrap_or(18_432);
        let decoder = DecoderConfig::read_with(config, heads, intermediate_size, rope)?;
        if decoder.rms_norm_eps != LATENT_EPS {
            let detail = "the family's latent norms have 1e-6, and all norms must have the same";
            return Err(config.unsupported("rms_norm_eps", decoder.rms_norm_eps, detail));
        }
        Ok(Self {
            mla,
            rope_interleave: config.boolean("rope_interleave")?.unwrap_or(true),
            first_k_dense_replace: config.int("first_k_dense_replace", 0..=1 << 12)?.unwrap_or(3),
            moe_layer_freq: config.int("moe_layer_freq", 1..=1 << 12)?.unwrap_or(1),
            num_nextn_predict_layers: config.int("num_nextn_predict_layers", 0..=1 << 12)?.unwrap_or(0),
            moe: read_moe(config)?,
            decoder,
        })
    }

    fn sparse(&self, layer: usize) -> bool {
        layer >= self.first_k_dense_replace && layer.is_multiple_of(self.moe_layer_freq)
    }

    fn arch(&self) -> ModelArch {
        let mut arch = self.decoder.arch("deepseek_v3");
        arch.mla = Some(self.mla);
        arch.rope_interleaved = self.rope_interleave;
        if (0..self.decoder.num_layers).any(|layer| self.sparse(layer)) {
            arch.moe = Some(self.moe.clone());
        }
        // For `rename`; the layers themselves are left out.
        let layers = self.num_nextn_predict_layers;
        arch.mtp = (layers > 0).then_some(Mtp { num_layers: layers, share_lm_head: true, share_embed: true });
        arch
    }

    fn layer(&self, list: &mut Tensors, prefix: &str, layer: usize) {
        let hidden = self.decoder.hidden_size as u64;
        list.add(format!("{prefix}input_layernorm.weight"), &[hidden]);
        self.attention(list, &format!("{prefix}self_attn."));
        list.add(format!("{prefix}post_attention_layernorm.weight"), &[hidden]);
        if self.sparse(layer) {
            let parts = MoeParts { expert_bias: true, shared_gate: false };
            moe::tensors(list, &format!("{prefix}mlp"), hidden, &self.moe, parts);
        } else {
            list.mlp(&format!("{prefix}mlp"), hidden, self.decoder.intermediate_size as u64, false);
        }
    }

    fn attention(&self, list: &mut Tensors, prefix: &str) {
        let Mla { q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim } = self.mla;
        let (hidden, heads) = (self.decoder.hidden_size as u64, self.decoder.num_heads as u64);
        let [kv_rank, nope, rope, value] =
            [kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim].map(|n| n as u64);
        let queries = heads * (nope + rope);
        match q_lora_rank {
            None => list.add(format!("{prefix}q_proj.weight"), &[queries, hidden]),
            Some(rank) => {
                let rank = rank as u64;
                list.add(format!("{prefix}q_a_proj.weight"), &[rank, hidden]);
                list.add(format!("{prefix}q_a_layernorm.weight"), &[rank]);
                list.add(format!("{prefix}q_b_proj.weight"), &[queries, rank]);
            }
        }
        list.add(format!("{prefix}kv_a_proj_with_mqa.weight"), &[kv_rank + rope, hidden]);
        list.add(format!("{prefix}kv_a_layernorm.weight"), &[kv_rank]);
        list.add(format!("{prefix}kv_b_proj.weight"), &[heads * (nope + value), kv_rank]);
        list.add(format!("{prefix}o_proj.weight"), &[hidden, heads * value]);
    }
}

/// Refuses the variants of the family that no published checkpoint of it has.
fn check_variants(config: &Object<'_>) -> Result<(), ConvertError> {
    if config.boolean("attention_bias")? == Some(true) {
        return Err(config.unsupported("attention_bias", true, "latent attention without biases is"));
    }
    for (key, supported) in [("scoring_func", "sigmoid"), ("topk_method", "noaux_tc")] {
        if let Some(value) = config.string(key)?
            && value != supported
        {
            return Err(config.unsupported(key, value, &format!("{supported} is")));
        }
    }
    Ok(())
}

fn read_mla(config: &Object<'_>) -> Result<Mla, ConvertError> {
    let (rank, width) = (1..=1 << 20, 1..=1 << 13);
    let qk_rope_head_dim = config.int("qk_rope_head_dim", 2..=1 << 13)?.unwrap_or(64);
    if !qk_rope_head_dim.is_multiple_of(2) {
        let reason = format!("is {qk_rope_head_dim}, rotary embedding needs an even one");
        return Err(config.invalid("qk_rope_head_dim", reason));
    }
    let q_lora_rank = match config.int("q_lora_rank", rank.clone())? {
        // Only an explicit null means that there is none.
        None if !config.has_key("q_lora_rank") => Some(1536),
        rank => rank,
    };
    Ok(Mla {
        q_lora_rank,
        kv_lora_rank: config.int("kv_lora_rank", rank)?.unwrap_or(512),
        qk_nope_head_dim: config.int("qk_nope_head_dim", width.clone())?.unwrap_or(128),
        qk_rope_head_dim,
        v_head_dim: config.int("v_head_dim", width)?.unwrap_or(128),
    })
}

fn read_moe(config: &Object<'_>) -> Result<Moe, ConvertError> {
    let key = config.alias(["n_routed_experts", "num_local_experts"]);
    let num_experts = moe::num_experts(config, key, 256)?;
    let top_k = moe::top_k(config, num_experts, 8)?;
    let width = config.int("moe_intermediate_size", INTERMEDIATE)?.unwrap_or(2048);
    let shared = match config.int("n_shared_experts", 0..=1 << 10)? {
        // Only an explicit null means that there is none.
        None if !config.has_key("n_shared_experts") => 1,
        shared => shared.unwrap_or(0),
    };
    let (n_group, topk_group) = read_groups(config, num_experts, top_k)?.unzip();
    Ok(Moe {
        num_experts,
        top_k,
        moe_intermediate_size: width,
        norm_topk_prob: config.boolean("norm_topk_prob")?.unwrap_or(true),
        // They are stored as one of their common width.
        shared_expert_intermediate_size: (shared > 0).then_some(shared * width),
        router_sigmoid: true,
        routed_scaling_factor: moe::routed_scaling(config, 2.5)?,
        n_group,
        topk_group,
        norm_topk_eps: Some(TOPK_EPS),
    })
}

/// The groups of the selection; `None` when all groups may be selected.
fn read_groups(config: &Object<'_>, num_experts: usize, top_k: usize) -> Result<Option<(usize, usize)>, ConvertError> {
    let n_group = config.int("n_group", 1..=num_experts)?.unwrap_or(8);
    let topk_group = config.int("topk_group", 1..=n_group)?.unwrap_or(4);
    if topk_group >= n_group {
        return Ok(None);
    }
    // A group is ranked by its two best experts.
    let size = num_experts / n_group;
    if !num_experts.is_multiple_of(n_group) || size < 2 {
        let reason = format!("is {n_group}: {num_experts} experts do not make groups of equal size, 2 at least");
        return Err(config.invalid("n_group", reason));
    }
    if topk_group * size < top_k {
        let reason = format!("is {topk_group}: {size} experts each are fewer than num_experts_per_tok");
        return Err(config.invalid("topk_group", reason));
    }
    Ok(Some((n_group, topk_group)))
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let deepseek = DeepseekConfig::read(config)?;
    let tensors = deepseek.decoder.tensors_by_layer(|list, prefix, layer| deepseek.layer(list, prefix, layer));
    Ok(Layout { arch: deepseek.arch(), tensors })
}

/// Names inside a layer that differ, in the checkpoint and here.
const NAMES: [(&str, &str); 2] =
    [(".mlp.gate.e_score_correction_bias", ".mlp.expert_bias"), (".mlp.shared_experts.", ".mlp.shared_expert.")];

fn rename(name: &str, arch: &ModelArch) -> Mapping {
    match decoder::rename(name, arch) {
        Mapping::Keep(name) if is_nextn(&name, arch) => {
            Mapping::Skip("multi-token prediction of this family is not supported")
        }
        Mapping::Keep(name) => {
            let replaced = NAMES.iter().find(|(theirs, _)| name.contains(theirs));
            Mapping::Keep(replaced.map_or_else(|| name.clone(), |(theirs, ours)| name.replace(theirs, ours)))
        }
        other => other,
    }
}

/// True for the layers that lie behind those of the decoder, `num_nextn_predict_layers` of them.
fn is_nextn(name: &str, arch: &ModelArch) -> bool {
    let layers = arch.mtp.as_ref().map_or(0, |mtp| mtp.num_layers);
    let layer = name.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.'));
    let index = layer.and_then(|(layer, _)| layer.parse::<usize>().ok());
    index.is_some_and(|index| (arch.num_layers..arch.num_layers + layers).contains(&index))
}
