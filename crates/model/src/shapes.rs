//! Shapes of well-known models, for benchmarks with random weights and no file.

use cortiq_cmf::{Header, LayerType, ModelArch, NormStyle, QuantType};

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
}

/// Every shape that [`named_shape`] knows.
pub const NAMED_SHAPES: [NamedShape; 3] = [
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
    },
];

/// The shape called `name`.
pub fn named_shape(name: &str) -> Option<NamedShape> {
    NAMED_SHAPES.into_iter().find(|shape| shape.name == name)
}

impl NamedShape {
    /// A header that describes this shape.
    pub fn header(&self) -> Header {
        let arch = ModelArch {
            arch_name: self.name.to_owned(),
            hidden_size: self.hidden_size,
            intermediate_size: self.intermediate_size,
            num_layers: self.num_layers,
            num_attention_heads: self.heads,
            num_kv_heads: self.kv_heads,
            head_dim: self.head_dim,
            vocab_size: self.vocab_size,
            layer_types: vec![LayerType::FullAttention; self.num_layers],
            rms_norm_eps: 1e-6,
            norm_style: NormStyle::Qwen,
            rope_theta: self.rope_theta,
            tie_word_embeddings: self.tied,
            max_position_embeddings: 32_768,
            ..ModelArch::default()
        };
        Header::new(arch, QuantType::F32)
    }
}

/// Name and shape (`[out, in]` or `[len]`) of every tensor of `shape`, in execution order.
pub fn tensors_of(shape: &NamedShape) -> Vec<(String, Vec<usize>)> {
    let s = shape;
    let (q_width, kv_width) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![s.vocab_size, s.hidden_size])];
    for layer in 0..s.num_layers {
        let mut add =
            |name: &str, dims: &[usize]| tensors.push((format!("model.layers.{layer}.{name}.weight"), dims.to_vec()));
        add("input_layernorm", &[s.hidden_size]);
        add("self_attn.q_proj", &[q_width, s.hidden_size]);
        add("self_attn.k_proj", &[kv_width, s.hidden_size]);
        add("self_attn.v_proj", &[kv_width, s.hidden_size]);
        if s.qk_norm {
            add("self_attn.q_norm", &[s.head_dim]);
            add("self_attn.k_norm", &[s.head_dim]);
        }
        add("self_attn.o_proj", &[s.hidden_size, q_width]);
        add("post_attention_layernorm", &[s.hidden_size]);
        add("mlp.gate_proj", &[s.intermediate_size, s.hidden_size]);
        add("mlp.up_proj", &[s.intermediate_size, s.hidden_size]);
        add("mlp.down_proj", &[s.hidden_size, s.intermediate_size]);
    }
    tensors.push(("model.norm.weight".to_owned(), vec![s.hidden_size]));
    if !s.tied {
        tensors.push(("lm_head.weight".to_owned(), vec![s.vocab_size, s.hidden_size]));
    }
    tensors
}
