//! Programs of what a task mask leaves.

use cortiq_cmf::{Dtype, Header, LayerType, Mask, MaskShape, Moe};
use cortiq_model::{ModelError, NamedShape, Op, OwnedTensor, OwnedWeights, Program, VectorId, tensors_of};

const SHAPE: NamedShape = NamedShape {
    name: "tiny",
    num_layers: 3,
    hidden_size: 8,
    heads: 2,
    kv_heads: 1,
    head_dim: 4,
    intermediate_size: 12,
    vocab_size: 10,
    tied: false,
    qk_norm: false,
    rope_theta: 1e4,
    experts: None,
    delta: None,
};

fn tensor(shape: &[usize]) -> OwnedTensor {
    let shape: Vec<u32> = shape.iter().map(|&d| d as u32).collect();
    let count = shape.iter().product::<u32>() as usize;
    OwnedTensor { dtype: Dtype::F32, shape, bytes: 0.5f32.to_le_bytes().repeat(count) }
}

fn model() -> (Header, OwnedWeights) {
    let mut weights = OwnedWeights::new();
    for (name, shape) in tensors_of(&SHAPE) {
        weights.insert(name, tensor(&shape));
    }
    (SHAPE.header(), weights)
}

/// A mask with everything on, then changed.
fn mask(shape: MaskShape, change: impl FnOnce(&mut Mask)) -> Mask {
    let mut mask = Mask::new(1, "task", shape);
    for layer in 0..shape.num_layers {
        mask.set_layer(layer, true);
        (0..shape.num_heads).for_each(|head| assert!(mask.set_head(layer, head, true)));
        (0..shape.intermediate_size).for_each(|neuron| assert!(mask.set_neuron(layer, neuron, true)));
    }
    change(&mut mask);
    mask
}

fn shape() -> MaskShape {
    MaskShape::from(&SHAPE.header().arch)
}

/// Head masks of the attention layers and neuron masks of the FFNs.
fn masks(program: &Program) -> [Vec<Option<Vec<f32>>>; 2] {
    let values = |id: &Option<VectorId>| id.map(|id| program.vectors[id.0].clone());
    let heads = |op: &Op| match op {
        Op::Attention(op) => Some(values(&op.head_mask)),
        _ => None,
    };
    let neurons = |op: &Op| match op {
        Op::GatedFfn(op) => Some(values(&op.neuron_mask)),
        _ => None,
    };
    [program.ops.iter().filter_map(heads).collect(), program.ops.iter().filter_map(neurons).collect()]
}

#[test]
fn heads_and_neurons_that_are_off_become_zeros() {
    let (header, weights) = model();
    let plain = Program::from_weights(&header, &weights).unwrap();
    let mask = mask(shape(), |mask| {
        assert!(mask.set_head(1, 0, false));
        assert!(mask.set_neuron(0, 11, false) && mask.set_neuron(0, 3, false));
    });
    let program = Program::masked(&header, &weights, &mask).unwrap();
    let mut neurons = vec![1.0; 12];
    (neurons[3], neurons[11]) = (0.0, 0.0);
    assert_eq!(masks(&program), [vec![None, Some(vec![0.0, 1.0]), None], vec![Some(neurons), None, None]]);
    assert_eq!(program.ops.len(), plain.ops.len());
    assert_eq!((program.states, program.matrices), (plain.states, plain.matrices));
}

#[test]
fn a_mask_with_everything_on_leaves_no_trace() {
    let (header, weights) = model();
    let plain = Program::from_weights(&header, &weights).unwrap();
    let program = Program::masked(&header, &weights, &mask(shape(), |_| {})).unwrap();
    assert_eq!((program.ops, program.vectors), (plain.ops, plain.vectors));
}

#[test]
fn layers_that_are_off_leave_neither_operations_nor_state() {
    let (header, weights) = model();
    let off = |layers: &[usize]| {
        let mask = mask(shape(), |mask| {
            for &layer in layers {
                // What else the mask says about that layer does not matter.
                assert!(mask.set_layer(layer, false) && mask.set_head(layer, 1, false));
            }
        });
        Program::masked(&header, &weights, &mask).unwrap()
    };
    let program = off(&[1]);
    assert_eq!(program.states.len(), 2);
    let names: Vec<&str> = program.matrices.iter().map(|matrix| matrix.name.as_str()).collect();
    assert!(names.iter().any(|name| name.starts_with("model.layers.2.")));
    assert!(!names.iter().any(|name| name.starts_with("model.layers.1.")));
    assert_eq!(masks(&program)[0], [None, None]);
    let empty = off(&[0, 1, 2]);
    assert!(matches!(empty.ops[..], [Op::Embed { .. }, Op::Norm { .. }, Op::Head(_)]));
    assert_eq!(empty.states.len(), 0);
}

#[test]
fn masks_of_other_sizes_are_refused() {
    let (header, weights) = model();
    let cases: [(MaskShape, &str); 3] = [
        (MaskShape { num_layers: 4, ..shape() }, "it is for 4 layers, the model has 3"),
        (MaskShape { num_heads: 3, ..shape() }, "in layer 0 it is for 3 query heads, the model has 2"),
        (MaskShape { intermediate_size: 16, ..shape() }, "in layer 0 it is for 16 FFN neurons, the model has 12"),
    ];
    for (shape, reason) in cases {
        let error = Program::masked(&header, &weights, &mask(shape, |_| {})).unwrap_err();
        assert!(matches!(&error, ModelError::Mask { task, reason: r } if task == "task" && r == reason), "{error}");
    }
}

#[test]
fn what_has_no_heads_or_neurons_cannot_lose_them() {
    type Change = fn(&mut Header, &mut OwnedWeights);
    let cases: [(&str, Change); 3] = [
        ("heads of layer 1 off, but that is a gated delta net", |header, _| {
            let arch = &mut header.arch;
            arch.layer_types[1] = LayerType::LinearAttention;
            (arch.linear_num_key_heads, arch.linear_num_value_heads) = (Some(1), Some(2));
            (arch.linear_key_head_dim, arch.linear_value_head_dim) = (Some(4), Some(4));
            arch.linear_conv_kernel_dim = Some(4);
        }),
        ("heads of layer 1 off, but that is a short convolution", |header, weights| {
            header.arch.layer_types[1] = LayerType::ShortConv;
            weights.insert("model.layers.1.short_conv.conv.weight", tensor(&[8, 1, 3]));
        }),
        ("neurons of layer 1 off, but that is a mixture of experts", |header, weights| {
            header.arch.moe = Some(Moe { num_experts: 2, top_k: 1, moe_intermediate_size: 4, ..Moe::default() });
            weights.insert("model.layers.1.mlp.gate.weight", tensor(&[2, 8]));
            weights.insert("model.layers.1.mlp.experts.0.gate_proj.weight", tensor(&[4, 8]));
        }),
    ];
    for (reason, change) in cases {
        let (mut header, mut weights) = model();
        change(&mut header, &mut weights);
        let mask = mask(MaskShape::from(&header.arch), |mask| {
            let heads = !reason.starts_with("neurons");
            assert!(if heads { mask.set_head(1, 0, false) } else { mask.set_neuron(1, 0, false) });
        });
        let error = Program::masked(&header, &weights, &mask).unwrap_err().to_string();
        assert!(error.contains("`task`") && error.contains(reason), "{reason}: {error}");
    }
}
