//! Shapes of well-known models, for benchmarks with random weights and no file.

use cortiq_cmf::{Header, LayerType, LinearCore, ModelArch, Moe, NormStyle, QuantType};

/// A model's published dimensions (from its `config.json`).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NamedShape {
    /// Name on the command line.
    pub name: &'static str,
    /// Decoder layers.
    pub num_layers: usize,
    /// Residual width.
    pub hidden_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// FFN width.
    pub intermediate_size: usize,
    /// Vocabulary.
    pub vocab_size: usize,
    /// The head is the embedding.
    pub tied: bool,
    /// Queries and keys are normed per head.
    pub qk_norm: bool,
    /// Rotary base.
    pub rope_theta: f64,
    /// Experts in every layer instead of one FFN.
    pub experts: Option<ExpertsShape>,
    /// Gated delta nets in most layers, gated attention in the others.
    pub delta: Option<DeltaShape>,
}

/// A mixture of experts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ExpertsShape {
    /// Experts of a layer.
    pub count: usize,
    /// Chosen per token, their weights made to sum to one.
    pub top_k: usize,
    /// Width of an expert.
    pub intermediate_size: usize,
    /// Width of the gated shared expert.
    pub shared: Option<usize>,
}

/// Gated delta nets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeltaShape {
    /// Every so many layers one is an attention layer with a gated output.
    pub attention_interval: usize,
    /// Query/key heads.
    pub key_heads: usize,
    /// Value heads.
    pub value_heads: usize,
    /// Width of a key head.
    pub key_dim: usize,
    /// Width of a value head.
    pub value_dim: usize,
    /// Taps of the convolution.
    pub conv_kernel: usize,
    /// Part of an attention head that is rotated.
    pub rotary_factor: f32,
}

/// Every shape that [`named_shape`] knows.
pub const NAMED_SHAPES: [NamedShape; 5] = [
    NamedShape {
        name: "smollm2-135m",
        num_layers: 30,
        hidden_size: 576,
        heads: 9,
        kv_heads: 3,
        head_dim: 64,
        intermediate_size: 1536,
        vocab_size: 49_152,
        tied: true,
        qk_norm: false,
        rope_theta: 1e5,
        experts: None,
        delta: None,
    },
    NamedShape {
        name: "qwen3-0.6b",
        num_layers: 28,
        hidden_size: 1024,
        heads: 16,
        kv_heads: 8,
        head_dim: 128,
        intermediate_size: 3072,
        vocab_size: 151_936,
        tied: true,
        qk_norm: true,
        rope_theta: 1e6,
        experts: None,
        delta: None,
    },
    NamedShape {
        name: "qwen3-8b",
        num_layers: 36,
        hidden_size: 4096,
        heads: 32,
        kv_heads: 8,
        head_dim: 128,
        intermediate_size: 12_288,
        vocab_size: 151_936,
        tied: false,
        qk_norm: true,
        rope_theta: 1e6,
        experts: None,
        delta: None,
    },
    NamedShape {
        name: "qwen3-30b-a3b",
        num_layers: 48,
        hidden_size: 2048,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        intermediate_size: 6144,
        vocab_size: 151_936,
        tied: false,
        qk_norm: true,
        rope_theta: 1e6,
        experts: Some(ExpertsShape { count: 128, top_k: 8, intermediate_size: 768, shared: None }),
        delta: None,
    },
    NamedShape {
        name: "qwen3.5-35b-a3b",
        num_layers: 40,
        hidden_size: 2048,
        heads: 16,
        kv_heads: 2,
        head_dim: 256,
        intermediate_size: 512,
        vocab_size: 248_320,
        tied: false,
        qk_norm: true,
        rope_theta: 1e7,
        experts: Some(ExpertsShape { count: 256, top_k: 8, intermediate_size: 512, shared: Some(512) }),
        delta: Some(DeltaShape {
            attention_interval: 4,
            key_heads: 16,
            value_heads: 32,
            key_dim: 128,
            value_dim: 128,
            conv_kernel: 4,
            rotary_factor: 0.25,
        }),
    },
];

/// The shape called `name`.
pub fn named_shape(name: &str) -> Option<NamedShape> {
    NAMED_SHAPES.into_iter().find(|shape| shape.name == name)
}

impl NamedShape {
    /// A header that describes this shape.
    pub fn header(&self) -> Header {
        let mut arch = ModelArch {
            arch_name: self.name.to_owned(),
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_layers: self.num_layers,
            num_attention_heads: self.heads,
            num_kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab_size,
            layer_types: (0..self.num_layers).map(|layer| self.layer_type(layer)).collect(),
            rms_norm_eps: 1e-6,
            norm_style: NormStyle::Qwen,
            rope_theta: self.rope_theta,
            tie_word_embeddings: self.tied,
            max_position_embeddings: 32_768,
            moe: self.experts.map(|experts| Moe {
                num_experts: experts.count,
                top_k: experts.top_k,
                moe_intermediate_size: experts.intermediate_size,
                norm_topk_prob: true,
                shared_expert_intermediate_size: experts.shared,
                ..Moe::default()
            }),
            ..ModelArch::default()
        };
        if let Some(delta) = &self.delta {
            arch.partial_rotary_factor = delta.rotary_factor;
            arch.linear_core = Some(LinearCore {
                kind: "gated_delta_net".to_owned(),
                num_heads: delta.value_heads,
                nphase: None,
                value_head_dim: delta.value_dim,
            });
            arch.linear_conv_kernel_dim = Some(delta.conv_kernel);
            arch.linear_num_key_heads = Some(delta.key_heads);
            arch.linear_num_value_heads = Some(delta.value_heads);
            arch.linear_key_head_dim = Some(delta.key_dim);
            arch.linear_value_head_dim = Some(delta.value_dim);
        }
        Header::new(arch, QuantType::F32)
    }

    fn layer_type(&self, layer: usize) -> LayerType {
        match &self.delta {
            Some(delta) if !(layer + 1).is_multiple_of(delta.attention_interval) => LayerType::LinearAttention,
            _ => LayerType::FullAttention,
        }
    }
}

/// Name and shape (`[out, in]`, `[len]` or `[channels, 1, taps]`) of every tensor of `shape`, in execution order.
pub fn tensors_of(shape: &NamedShape) -> Vec<(String, Vec<usize>)> {
    let s = shape;
    let mut list = vec![("model.embed_tokens.weight".to_owned(), vec![s.vocab_size, s.hidden_size])];
    for layer in 0..s.num_layers {
        let mut add = |name: &str, dims: &[usize]| list.push((format!("model.layers.{layer}.{name}"), dims.to_vec()));
        add("input_layernorm.weight", &[s.hidden_size]);
        match (&s.delta, s.layer_type(layer)) {
            (Some(delta), LayerType::LinearAttention) => delta_tensors(s, delta, &mut add),
            _ => attention_tensors(s, &mut add),
        }
        add("post_attention_layernorm.weight", &[s.hidden_size]);
        match &s.experts {
            Some(experts) => expert_tensors(s, experts, &mut add),
            None => ffn_tensors(s.hidden_size, s.intermediate_size, "mlp", &mut add),
        }
    }
    list.push(("model.norm.weight".to_owned(), vec![s.hidden_size]));
    if !s.tied {
        list.push(("lm_head.weight".to_owned(), vec![s.vocab_size, s.hidden_size]));
    }
    list
}

fn attention_tensors(s: &NamedShape, add: &mut dyn FnMut(&str, &[usize])) {
    let (q_width, kv_width) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    // Beside delta nets, queries come with a gate for the output.
    let gates = if s.delta.is_some() { 2 } else { 1 };
    add("self_attn.q_proj.weight", &[gates * q_width, s.hidden_size]);
    add("self_attn.k_proj.weight", &[kv_width, s.hidden_size]);
    add("self_attn.v_proj.weight", &[kv_width, s.hidden_size]);
    if s.qk_norm {
        add("self_attn.q_norm.weight", &[s.head_dim]);
        add("self_attn.k_norm.weight", &[s.head_dim]);
    }
    add("self_attn.o_proj.weight", &[s.hidden_size, q_width]);
}

fn delta_tensors(s: &NamedShape, delta: &DeltaShape, add: &mut dyn FnMut(&str, &[usize])) {
    let values = delta.value_heads * delta.value_dim;
    let channels = 2 * delta.key_heads * delta.key_dim + values;
    add("linear_attn.in_proj_qkv.weight", &[channels, s.hidden_size]);
    add("linear_attn.in_proj_z.weight", &[values, s.hidden_size]);
    add("linear_attn.in_proj_b.weight", &[delta.value_heads, s.hidden_size]);
    add("linear_attn.in_proj_a.weight", &[delta.value_heads, s.hidden_size]);
    add("linear_attn.conv1d.weight", &[channels, 1, delta.conv_kernel]);
    add("linear_attn.A_log", &[delta.value_heads]);
    add("linear_attn.dt_bias", &[delta.value_heads]);
    add("linear_attn.norm.weight", &[delta.value_dim]);
    add("linear_attn.out_proj.weight", &[s.hidden_size, values]);
}

fn expert_tensors(s: &NamedShape, experts: &ExpertsShape, add: &mut dyn FnMut(&str, &[usize])) {
    add("mlp.gate.weight", &[experts.count, s.hidden_size]);
    for expert in 0..experts.count {
        ffn_tensors(s.hidden_size, experts.intermediate_size, &format!("mlp.experts.{expert}"), add);
    }
    if let Some(shared) = experts.shared {
        ffn_tensors(s.hidden_size, shared, "mlp.shared_expert", add);
        add("mlp.shared_expert_gate.weight", &[1, s.hidden_size]);
    }
}

fn ffn_tensors(hidden_size: usize, width: usize, name: &str, add: &mut dyn FnMut(&str, &[usize])) {
    add(&format!("{name}.gate_proj.weight"), &[width, hidden_size]);
    add(&format!("{name}.up_proj.weight"), &[width, hidden_size]);
    add(&format!("{name}.down_proj.weight"), &[hidden_size, width]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OwnedTensor, OwnedWeights, Program};
    use cortiq_cmf::Dtype;

    /// Shapes of the largest models, cut to few layers and experts, are models that can be run.
    #[test]
    fn every_shape_can_be_lowered() {
        for shape in NAMED_SHAPES {
            let experts = shape.experts.map(|experts| ExpertsShape { count: 9, ..experts });
            let small = NamedShape { num_layers: 4, vocab_size: 7, experts, ..shape };
            let mut weights = OwnedWeights::new();
            for (name, dims) in tensors_of(&small) {
                let bytes = vec![0; 2 * dims.iter().product::<usize>()];
                let shape = dims.iter().map(|&d| d as u32).collect();
                weights.insert(name, OwnedTensor { dtype: Dtype::F16, shape, bytes });
            }
            let program = Program::from_weights(&small.header(), &weights).unwrap();
            assert_eq!(program.vocab_size, 7, "{}", shape.name);
        }
    }
}
