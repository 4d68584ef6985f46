//! What a canonical tensor name says: its kind and its place in execution order.

/// Kind of a tensor, for the report and for the storage policy. The order is that of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Kind {
    Embedding,
    Attention,
    LinearAttention,
    ShortConv,
    Ffn,
    Experts,
    Gates,
    Norms,
    Biases,
    Mtp,
    Head,
    Other,
}

impl Kind {
    /// Name in the report.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Attention => "attention",
            Self::LinearAttention => "linear attention",
            Self::ShortConv => "short convolution",
            Self::Ffn => "ffn",
            Self::Experts => "experts",
            Self::Gates => "gates",
            Self::Norms => "norms",
            Self::Biases => "biases",
            Self::Mtp => "mtp",
            Self::Head => "head",
            Self::Other => "other",
        }
    }
}

/// Small matrices whose error is felt everywhere: routers, the shared expert's gate, and the decay
/// and beta inputs of the delta net (docs/cmf-format.md §16).
const SENSITIVE: [&str; 4] =
    ["linear_attn.in_proj_a.weight", "linear_attn.in_proj_b.weight", "mlp.gate.weight", "shared_expert_gate.weight"];

/// True for the matrices that the format's policy never quantises.
pub(crate) fn is_sensitive(name: &str) -> bool {
    SENSITIVE.iter().any(|suffix| name.ends_with(suffix))
}

/// True for the input embedding and the output head.
pub(crate) fn is_embedding_or_head(name: &str) -> bool {
    matches!(kind(name), Kind::Embedding | Kind::Head)
}

/// Kind of the tensor `name`.
pub(crate) fn kind(name: &str) -> Kind {
    if name == "lm_head.weight" {
        Kind::Head
    } else if name == "model.embed_tokens.weight" {
        Kind::Embedding
    } else if name.starts_with("model.mtp.") {
        Kind::Mtp
    } else if is_sensitive(name) {
        Kind::Gates
    } else if name.ends_with("norm.weight") || name.ends_with("layernorm.weight") {
        Kind::Norms
    } else if name.ends_with("bias") {
        Kind::Biases
    } else if name.contains(".self_attn.") {
        Kind::Attention
    } else if name.contains(".linear_attn.") || name.contains(".vmf_attn.") {
        Kind::LinearAttention
    } else if name.contains(".short_conv.") {
        Kind::ShortConv
    } else if name.contains(".mlp.experts.") || name.contains(".mlp.shared_expert.") {
        Kind::Experts
    } else if name.contains(".mlp.") {
        Kind::Ffn
    } else {
        Kind::Other
    }
}

/// Stems inside a layer, in the order in which a step reads them.
const LAYER_ORDER: [&str; 40] = [
    "input_layernorm.",
    "self_attn.q_proj.",
    "self_attn.k_proj.",
    "self_attn.v_proj.",
    "self_attn.q_norm.",
    "self_attn.k_norm.",
    "self_attn.q_a_proj.",
    "self_attn.q_a_layernorm.",
    "self_attn.q_b_proj.",
    "self_attn.kv_a_proj_with_mqa.",
    "self_attn.kv_a_layernorm.",
    "self_attn.kv_b_proj.",
    "self_attn.o_proj.",
    "self_attn.",
    "linear_attn.in_proj_qkv.",
    "linear_attn.in_proj_z.",
    "linear_attn.in_proj_b.",
    "linear_attn.in_proj_a.",
    "linear_attn.conv1d.",
    "linear_attn.A_log",
    "linear_attn.dt_bias",
    "linear_attn.norm.",
    "linear_attn.out_proj.",
    "linear_attn.",
    "vmf_attn.",
    "short_conv.in_proj.",
    "short_conv.conv.",
    "short_conv.out_proj.",
    "post_attention_layernorm.",
    "pre_feedforward_layernorm.",
    "mlp.gate.",
    "mlp.expert_bias",
    "mlp.experts.",
    "mlp.shared_expert_gate.",
    "mlp.shared_expert.",
    "mlp.gate_proj.",
    "mlp.up_proj.",
    "mlp.down_proj.",
    "post_feedforward_layernorm.",
    "layer_scalar",
];

/// Sort key of execution order: embedding, layers, final norm, head, multi-token prediction.
/// Names it does not know keep a stable place (by name) after the ones it knows.
pub(crate) fn order_key(name: &str) -> OrderKey {
    let (section, layer) = match name {
        "model.embed_tokens.weight" => (0, None),
        "model.norm.weight" => (2, None),
        "lm_head.weight" => (3, None),
        "model.mtp.norm.weight" => (6, None),
        _ => match (name.strip_prefix("model.layers."), name.strip_prefix("model.mtp.layers.")) {
            (Some(layer), _) => (1, Some(layer)),
            (_, Some(layer)) => (5, Some(layer)),
            // The norms of its two inputs come before the projection of both.
            _ if name == "model.mtp.eh_proj.weight" => (4, Some("0.eh_proj")),
            _ if name.starts_with("model.mtp.") => (4, None),
            _ => (7, None),
        },
    };
    let mut key = OrderKey { section, layer: 0, rank: 0, expert: 0, part: 0, name: name.to_owned() };
    if let Some((layer, stem)) = layer.and_then(|layer| layer.split_once('.')) {
        key.layer = layer.parse().unwrap_or(u64::MAX);
        key.rank = LAYER_ORDER.iter().position(|s| stem.starts_with(s)).unwrap_or(LAYER_ORDER.len());
        if let Some((expert, _)) = stem.strip_prefix("mlp.experts.").and_then(|s| s.split_once('.')) {
            key.expert = expert.parse().unwrap_or(u64::MAX);
        }
        key.part = part_of(stem);
    }
    key
}

/// Order inside an expert, and weight before bias inside a linear map.
fn part_of(stem: &str) -> u8 {
    let base = if stem.contains("gate_proj") {
        0
    } else if stem.contains("up_proj") {
        2
    } else if stem.contains("down_proj") {
        4
    } else {
        6
    };
    base + u8::from(stem.ends_with("bias"))
}

/// See [`order_key`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OrderKey {
    section: u8,
    layer: u64,
    rank: usize,
    expert: u64,
    part: u8,
    name: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn execution_order_is_numeric_and_keeps_biases_with_their_weights() {
        let expected = [
            "model.embed_tokens.weight",
            "model.layers.0.input_layernorm.weight",
            "model.layers.0.self_attn.q_proj.weight",
            "model.layers.0.self_attn.q_proj.bias",
            "model.layers.0.self_attn.k_proj.weight",
            "model.layers.0.self_attn.o_proj.weight",
            "model.layers.0.post_attention_layernorm.weight",
            "model.layers.0.mlp.gate.weight",
            "model.layers.0.mlp.experts.2.gate_proj.weight",
            "model.layers.0.mlp.experts.2.up_proj.weight",
            "model.layers.0.mlp.experts.2.down_proj.weight",
            "model.layers.0.mlp.experts.10.gate_proj.weight",
            "model.layers.1.self_attn.q_a_proj.weight",
            "model.layers.1.self_attn.q_a_layernorm.weight",
            "model.layers.1.self_attn.q_b_proj.weight",
            "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
            "model.layers.1.self_attn.kv_a_layernorm.weight",
            "model.layers.1.self_attn.kv_b_proj.weight",
            "model.layers.1.self_attn.o_proj.weight",
            "model.layers.2.mlp.gate_proj.weight",
            "model.layers.2.mlp.gate_proj.bias",
            "model.layers.2.mlp.down_proj.weight",
            "model.layers.10.mlp.gate_proj.weight",
            "model.norm.weight",
            "lm_head.weight",
            "model.mtp.enorm.weight",
            "model.mtp.hnorm.weight",
            "model.mtp.eh_proj.weight",
            "model.mtp.layers.0.input_layernorm.weight",
            "model.mtp.layers.0.self_attn.q_proj.weight",
            "model.mtp.layers.0.mlp.experts.2.gate_proj.weight",
            "model.mtp.layers.0.mlp.experts.10.gate_proj.weight",
            "model.mtp.norm.weight",
        ];
        let mut shuffled = expected.to_vec();
        shuffled.sort_unstable();
        assert_ne!(shuffled, expected);
        shuffled.sort_by_cached_key(|n| order_key(n));
        assert_eq!(shuffled, expected);
    }

    #[test]
    fn kinds() {
        for (name, expected) in [
            ("model.embed_tokens.weight", Kind::Embedding),
            ("lm_head.weight", Kind::Head),
            ("model.norm.weight", Kind::Norms),
            ("model.layers.3.self_attn.q_norm.weight", Kind::Norms),
            ("model.layers.3.input_layernorm.weight", Kind::Norms),
            ("model.layers.3.self_attn.q_proj.weight", Kind::Attention),
            ("model.layers.3.self_attn.q_proj.bias", Kind::Biases),
            ("model.layers.3.linear_attn.dt_bias", Kind::Biases),
            ("model.layers.3.linear_attn.A_log", Kind::LinearAttention),
            ("model.layers.3.linear_attn.in_proj_a.weight", Kind::Gates),
            ("model.layers.3.mlp.gate.weight", Kind::Gates),
            ("model.layers.3.mlp.gate_proj.weight", Kind::Ffn),
            ("model.layers.3.mlp.experts.7.up_proj.weight", Kind::Experts),
            ("model.layers.3.mlp.shared_expert_gate.weight", Kind::Gates),
            ("model.layers.3.mlp.shared_expert.up_proj.weight", Kind::Experts),
        ] {
            assert_eq!(kind(name), expected, "{name}");
        }
    }
}
