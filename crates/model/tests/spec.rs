//! Which models are lowered, and that every other one is refused by name.

use cortiq_cmf::{Dtype, Header, LayerType, Moe, NormStyle, RopeScaling};
use cortiq_model::{
    Activation, ModelError, ModelSpec, NAMED_SHAPES, NamedShape, Op, OwnedTensor, OwnedWeights, Program, tensors_of,
};

const SHAPE: NamedShape = NamedShape {
    name: "tiny",
    num_layers: 2,
    hidden_size: 8,
    heads: 2,
    kv_heads: 1,
    head_dim: 4,
    intermediate_size: 12,
    vocab_size: 10,
    tied: false,
    qk_norm: true,
    rope_theta: 1e4,
};

fn f32_tensor(shape: &[usize], value: f32) -> OwnedTensor {
    let shape: Vec<u32> = shape.iter().map(|&d| d as u32).collect();
    let count = shape.iter().product::<u32>() as usize;
    OwnedTensor { dtype: Dtype::F32, shape, bytes: value.to_le_bytes().repeat(count) }
}

fn model() -> (Header, OwnedWeights) {
    let mut weights = OwnedWeights::new();
    for (name, shape) in tensors_of(&SHAPE) {
        weights.insert(name, f32_tensor(&shape, 0.5));
    }
    (SHAPE.header(), weights)
}

fn program(change: impl FnOnce(&mut Header, &mut OwnedWeights)) -> Result<Program, ModelError> {
    let (mut header, mut weights) = model();
    change(&mut header, &mut weights);
    Program::from_weights(&header, &weights)
}

#[test]
fn a_dense_model_becomes_eight_operations_per_layer() {
    let program = program(|_, _| {}).unwrap();
    let names: Vec<&str> = program
        .ops
        .iter()
        .map(|op| match op {
            Op::Embed { .. } => "embed",
            Op::Norm { .. } => "norm",
            Op::Linear { .. } => "linear",
            Op::QkNormRopeStore(_) => "store",
            Op::Attention(_) => "attention",
            Op::GatedFfn(_) => "ffn",
            Op::Residual { .. } => "residual",
            Op::Head(_) => "head",
        })
        .collect();
    let layer = ["norm", "linear", "store", "attention", "linear", "residual", "norm", "ffn", "residual"];
    assert_eq!(names, [&["embed"][..], &layer, &layer, &["norm", "head"]].concat());
    assert_eq!(program.kv_layers.len(), 2);
    assert_eq!(program.ropes.len(), 1, "equal layers share a table");
}

#[test]
fn a_missing_head_means_tied_embeddings() {
    let (header, _) = model();
    let mut weights = OwnedWeights::new();
    for (name, shape) in tensors_of(&SHAPE).into_iter().filter(|(name, _)| name != "lm_head.weight") {
        weights.insert(name, f32_tensor(&shape, 0.5));
    }
    assert!(!header.arch.tie_word_embeddings);
    let spec = ModelSpec::new(&header, &weights).unwrap();
    assert_eq!(spec.head, "model.embed_tokens.weight");
}

#[test]
fn bytes_per_token_count_one_embedding_row_or_the_whole_head() {
    let untied = program(|_, _| {}).unwrap();
    let (_, weights) = model();
    let all: u64 = tensors_of(&SHAPE).iter().map(|(_, s)| 4 * s.iter().product::<usize>() as u64).sum();
    let embedding = 4 * (SHAPE.vocab_size * SHAPE.hidden_size) as u64;
    let row = 4 * SHAPE.hidden_size as u64;
    assert_eq!(untied.bytes_per_token(&weights).unwrap(), all - embedding + row);
    let tied = program(|header, _| header.arch.tie_word_embeddings = true).unwrap();
    assert_eq!(tied.bytes_per_token(&weights).unwrap(), all - embedding);
}

#[test]
fn windows_follow_sliding_layers() {
    let (mut header, weights) = model();
    header.arch.sliding_window = Some(7);
    let windows = |header: &Header| -> Vec<Option<usize>> {
        let spec = ModelSpec::new(header, &weights).unwrap();
        spec.layers
            .iter()
            .map(|layer| match &layer.mixer {
                cortiq_model::MixerSpec::Attention(attention) => attention.window,
            })
            .collect()
    };
    assert_eq!(windows(&header), [Some(7), Some(7)]);
    header.arch.sliding_layers = Some(vec![false, true]);
    assert_eq!(windows(&header), [None, Some(7)]);
}

#[test]
fn gemma_norms_and_activation_are_lowered() {
    let program = program(|header, _| {
        header.arch.norm_style = NormStyle::Gemma;
        header.arch.hidden_act = "gelu_tanh".to_owned();
    })
    .unwrap();
    assert!(program.vectors.iter().flatten().all(|w| *w == 1.5));
    assert!(program.ops.iter().any(|op| matches!(op, Op::GatedFfn(ffn) if ffn.activation == Activation::GeluTanh)));
}

#[test]
fn everything_else_is_refused_by_name() {
    type Change = fn(&mut Header, &mut OwnedWeights);
    let cases: [(&str, Change); 19] = [
        ("LinearAttention", |h, _| h.arch.layer_types[1] = LayerType::LinearAttention),
        ("ShortConv", |h, _| h.arch.layer_types[0] = LayerType::ShortConv),
        ("global_head_dim", |h, _| h.arch.global_head_dim = Some(8)),
        ("attn_v_norm", |h, _| h.arch.attn_v_norm = true),
        ("rope_local_base_freq", |h, _| h.arch.rope_local_base_freq = Some(1e4)),
        ("sliding_window_pattern", |h, _| h.arch.sliding_window_pattern = Some(6)),
        ("`moe`", |h, _| {
            h.arch.moe = Some(Moe {
                num_experts: 4,
                top_k: 2,
                moe_intermediate_size: 8,
                norm_topk_prob: true,
                shared_expert_intermediate_size: None,
                router_sigmoid: false,
                routed_scaling_factor: None,
                n_group: None,
                topk_group: None,
                norm_topk_eps: None,
            });
        }),
        ("router", |_, w| w.insert("model.layers.1.mlp.gate.weight", f32_tensor(&[4, 8], 0.0))),
        ("sandwich", |_, w| w.insert("model.layers.0.pre_feedforward_layernorm.weight", f32_tensor(&[8], 0.0))),
        ("residual scale", |_, w| w.insert("model.layers.0.layer_scalar", f32_tensor(&[1], 0.0))),
        ("gated attention", |_, w| w.insert("model.layers.0.self_attn.q_proj.weight", f32_tensor(&[16, 8], 0.0))),
        ("activation `relu`", |h, _| h.arch.hidden_act = "relu".to_owned()),
        ("longrope", |h, _| {
            h.arch.rope_scaling = Some(RopeScaling::LongRope {
                short_factor: vec![1.0; 2],
                long_factor: vec![1.0; 2],
                original_max_position_embeddings: 8,
                attention_factor: None,
            });
        }),
        ("partial_rotary_factor", |h, _| h.arch.partial_rotary_factor = 0.76),
        ("num_kv_heads", |h, _| h.arch.num_kv_heads = 3),
        ("layer_types", |h, _| h.arch.layer_types.truncate(1)),
        ("q_proj.weight` has shape [9, 8], expected [8, 8]", |_, w| {
            w.insert("model.layers.1.self_attn.q_proj.weight", f32_tensor(&[9, 8], 0.0));
        }),
        ("stored as q8_row", |_, w| {
            let bytes = vec![0; 10];
            w.insert("model.norm.weight", OwnedTensor { dtype: Dtype::Q8Row, shape: vec![8], bytes });
        }),
        ("`model.layers.2.self_attn.q_proj.weight` is missing", |h, _| {
            h.arch.num_layers = 3;
            h.arch.layer_types.push(LayerType::FullAttention);
        }),
    ];
    for (expected, change) in cases {
        let error = program(change).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

#[test]
fn named_shapes_are_valid() {
    for shape in NAMED_SHAPES {
        assert_eq!(shape.heads % shape.kv_heads, 0, "{}", shape.name);
        assert!(shape.header().check().is_ok(), "{}", shape.name);
        assert_eq!(cortiq_model::named_shape(shape.name), Some(shape));
    }
}
