//! Which models are lowered, and that every other one is refused by name.

use cortiq_cmf::{Dtype, Header, LayerType, LinearCore, Mla, NormStyle, RopeScaling};
use cortiq_model::{
    Activation, MixerSpec, ModelError, ModelSpec, NAMED_SHAPES, NamedShape, NormSpan, Op, OwnedTensor, OwnedWeights,
    Program, tensors_of,
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
    experts: None,
    delta: None,
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

fn list_extensions(header: &mut Header) {
    header.extensions = header.implied_extensions().into_iter().map(str::to_owned).collect();
}

fn program(change: impl FnOnce(&mut Header, &mut OwnedWeights)) -> Result<Program, ModelError> {
    let (mut header, mut weights) = model();
    change(&mut header, &mut weights);
    list_extensions(&mut header);
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
            _ => "other",
        })
        .collect();
    let layer = ["norm", "linear", "store", "attention", "linear", "residual", "norm", "ffn", "residual"];
    assert_eq!(names, [&["embed"][..], &layer, &layer, &["norm", "head"]].concat());
    assert_eq!(program.states.len(), 2);
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
                MixerSpec::Attention(attention) => attention.window,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(windows(&header), [Some(7), Some(7)]);
    header.arch.sliding_layers = Some(vec![false, true]);
    list_extensions(&mut header);
    assert_eq!(windows(&header), [None, Some(7)]);
    header.arch.sliding_layers = None;
    list_extensions(&mut header);
    header.arch.sliding_window_pattern = Some(2);
    assert_eq!(windows(&header), [Some(7), None], "every second layer is global");
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
fn norm_layouts_follow_the_tensors() {
    let names = |weights: &OwnedWeights| -> Vec<String> {
        let layer = ModelSpec::new(&SHAPE.header(), weights).unwrap().layers.swap_remove(0);
        let norms = [layer.mixer_norm, layer.mixer_post_norm, layer.ffn_norm, layer.ffn_post_norm];
        let name = |norm: cortiq_model::NormSpec| norm.weight.split('.').nth(3).unwrap().to_owned();
        norms.into_iter().map(|norm| norm.map_or_else(|| "-".to_owned(), name)).collect()
    };
    assert_eq!(names(&model().1), ["input_layernorm", "-", "post_attention_layernorm", "-"]);

    let (_, mut sandwich) = model();
    for layer in 0..2 {
        for norm in ["pre_feedforward_layernorm", "post_feedforward_layernorm"] {
            sandwich.insert(format!("model.layers.{layer}.{norm}.weight"), f32_tensor(&[8], 1.0));
        }
    }
    let all =
        ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"];
    assert_eq!(names(&sandwich), all);

    let mut post = OwnedWeights::new();
    for (name, shape) in tensors_of(&SHAPE) {
        post.insert(name.replace("input_layernorm", "post_feedforward_layernorm"), f32_tensor(&shape, 0.5));
    }
    assert_eq!(names(&post), ["-", "post_attention_layernorm", "-", "post_feedforward_layernorm"]);
}

#[test]
fn gates_and_wide_norms_follow_the_shapes() {
    let attention = |change: &dyn Fn(&mut OwnedWeights)| {
        let (header, mut weights) = model();
        change(&mut weights);
        match ModelSpec::new(&header, &weights).unwrap().layers.swap_remove(1).mixer {
            MixerSpec::Attention(attention) => attention,
            other => panic!("{other:?}"),
        }
    };
    let plain = attention(&|_| {});
    assert!(!plain.output_gate && plain.qk_norm.unwrap().span == NormSpan::Head);
    let gated = attention(&|w| w.insert("model.layers.1.self_attn.q_proj.weight", f32_tensor(&[16, 8], 0.0)));
    assert!(gated.output_gate);
    let wide = attention(&|w| w.insert("model.layers.1.self_attn.q_norm.weight", f32_tensor(&[8], 0.0)));
    assert_eq!(wide.qk_norm.unwrap().span, NormSpan::AllHeads);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    type Change = fn(&mut Header, &mut OwnedWeights);
    let cases: [(&str, Change); 14] = [
        ("in_proj_qkv.weight` is missing", |h, _| {
            h.arch.layer_types[1] = LayerType::LinearAttention;
            h.arch.linear_num_key_heads = Some(1);
            h.arch.linear_num_value_heads = Some(2);
            h.arch.linear_key_head_dim = Some(4);
            h.arch.linear_value_head_dim = Some(4);
            h.arch.linear_conv_kernel_dim = Some(4);
        }),
        ("`linear_num_key_heads` is invalid", |h, _| h.arch.layer_types[1] = LayerType::LinearAttention),
        ("core `vmf_phase`", |h, _| {
            h.arch.layer_types[1] = LayerType::LinearAttention;
            let kind = "vmf_phase".to_owned();
            h.arch.linear_core = Some(LinearCore { kind, num_heads: 2, nphase: Some(2), value_head_dim: 4 });
        }),
        ("short_conv.conv.weight` is missing", |h, _| h.arch.layer_types[0] = LayerType::ShortConv),
        ("router", |_, w| w.insert("model.layers.1.mlp.gate.weight", f32_tensor(&[4, 8], 0.0))),
        ("kv_a_proj_with_mqa.weight` is missing", |h, _| {
            h.arch.mla = Some(Mla {
                q_lora_rank: None,
                kv_lora_rank: 4,
                qk_nope_head_dim: 2,
                qk_rope_head_dim: 2,
                v_head_dim: 2,
            });
        }),
        ("activation `relu`", |h, _| h.arch.hidden_act = "relu".to_owned()),
        ("1 factors for 2 frequencies", |h, _| {
            h.arch.rope_scaling = Some(RopeScaling::LongRope {
                short_factor: vec![1.0],
                long_factor: vec![1.0],
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
