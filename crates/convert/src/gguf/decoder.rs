//! What the supported architectures share: a pre-norm decoder with grouped-query attention and a
//! gated FFN. An architecture file says by a [`Family`] in what it differs.

use std::collections::HashMap;
use std::sync::Arc;

use cortiq_cmf::{GenerationDefaults, Header, LayerType, ModelArch, QuantType, RopeScaling, TokenizerConfig};

use super::hyper::Hyper;
use super::metadata::Metadata;
use super::reader::TensorRecord;
use super::tokenizer::{self, RebuiltTokenizer};
use super::{GgmlType, GgufError, GgufFile, dequantize, rope};
use crate::{ConvertError, ImportedModel, LoadFn, NativeDtype, SourceTensor};

/// In what an architecture differs from the others.
pub(super) struct Family {
    /// Value of `general.architecture`, and the family's name in the header.
    pub(super) arch: &'static str,
    /// RoPE turns neighbouring pairs, so that q and k rows are stored reordered.
    pub(super) paired_rope: bool,
    /// q and k are normalised per head.
    pub(super) qk_norm: bool,
    /// `attention.sliding_window` applies to all layers.
    pub(super) sliding_window: bool,
    /// `rope_freqs.weight` may hold frequency divisors.
    pub(super) frequency_divisors: bool,
}

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
const DIVISORS: &str = "rope_freqs.weight";
/// Tables of inverse frequencies that some old files carry in each layer; they follow from the
/// metadata.
const IGNORED_STEM: &str = "attn_rot_embd.";

/// Describes the model of `file`.
pub(super) fn import(file: &Arc<GgufFile>, family: &Family) -> Result<ImportedModel, GgufError> {
    let metadata = file.metadata();
    let tensor_count = file.tensors().len();
    let hyper = Hyper::read(metadata, family.arch, tensor_count, family.sliding_window)?;
    let tied = file.find(HEAD).is_none();
    let vocab_size = vocab_size(file, &hyper)?;
    let mut notes = Vec::new();
    let plan = plan(family, &hyper, vocab_size, tied);
    let tensors = bind(file, family, &plan, &mut notes)?;
    let scaling = rope_scaling(file, family, &hyper)?;
    let tokenizer = tokenizer::rebuild(metadata)?;
    if tokenizer.token_count > vocab_size {
        let reason = format!("{} tokens, but the embedding has {vocab_size} rows", tokenizer.token_count);
        return Err(GgufError::bad_key(tokenizer::KEY_TOKENS, reason));
    }
    notes.extend(tokenizer.notes.iter().cloned());
    let arch = arch(family, &hyper, vocab_size, tied, scaling);
    let header = header(arch, &tensors, &tokenizer, metadata)?;
    Ok(ImportedModel { header, tensors, tokenizer_json: Some(tokenizer.json), notes })
}

/// Rows of the embedding.
fn vocab_size(file: &GgufFile, hyper: &Hyper) -> Result<usize, GgufError> {
    let missing = || GgufError::MissingTensor { name: EMBEDDING.to_owned() };
    let record = file.find(EMBEDDING).and_then(|i| file.tensors().get(i)).ok_or_else(missing)?;
    let rows = record.shape.first().copied().unwrap_or(0);
    check_shape(record, &[rows, hyper.hidden as u64])?;
    usize::try_from(rows).map_err(|_| GgufError::malformed(EMBEDDING, "has too many rows"))
}

/// A tensor that may be in the file.
struct Planned {
    gguf: String,
    canonical: String,
    shape: Vec<u64>,
    required: bool,
    /// Heads whose rows are stored in pair order.
    paired: Option<PairOrder>,
}

/// All tensors of the architecture.
fn plan(family: &Family, hyper: &Hyper, vocab_size: usize, tied: bool) -> Vec<Planned> {
    let (hidden, vocab) = (hyper.hidden as u64, vocab_size as u64);
    let top = |gguf: &str, canonical: &str, shape: Vec<u64>| Planned {
        gguf: gguf.to_owned(),
        canonical: canonical.to_owned(),
        shape,
        required: true,
        paired: None,
    };
    let mut plan = vec![
        top(EMBEDDING, "model.embed_tokens.weight", vec![vocab, hidden]),
        top("output_norm.weight", "model.norm.weight", vec![hidden]),
    ];
    if !tied {
        plan.push(top(HEAD, "lm_head.weight", vec![vocab, hidden]));
    }
    for layer in 0..hyper.layers {
        plan_layer(family, hyper, layer, &mut plan);
    }
    plan
}

fn plan_layer(family: &Family, hyper: &Hyper, layer: usize, plan: &mut Vec<Planned>) {
    let (hidden, ffn) = (hyper.hidden as u64, hyper.ffn as u64);
    // Sizes are below 2^32, so the products fit.
    let rows = |heads: usize| heads as u64 * hyper.head_dim as u64;
    let (q_rows, kv_rows) = (rows(hyper.heads), rows(hyper.kv_heads));
    let pair_order = |heads| {
        family.paired_rope.then_some(PairOrder { heads, head_dim: hyper.head_dim, rotary_dim: hyper.rotary_dim })
    };
    let mut add = |gguf: &str, canonical: &str, shape: Vec<u64>, required, paired| {
        plan.push(Planned {
            gguf: format!("blk.{layer}.{gguf}"),
            canonical: format!("model.layers.{layer}.{canonical}"),
            shape,
            required,
            paired,
        });
    };
    add("attn_norm.weight", "input_layernorm.weight", vec![hidden], true, None);
    add("ffn_norm.weight", "post_attention_layernorm.weight", vec![hidden], true, None);
    if family.qk_norm {
        let shape = || vec![hyper.head_dim as u64];
        add("attn_q_norm.weight", "self_attn.q_norm.weight", shape(), true, None);
        add("attn_k_norm.weight", "self_attn.k_norm.weight", shape(), true, None);
    }
    for (gguf, canonical, rows, cols, paired) in [
        ("attn_q", "self_attn.q_proj", q_rows, hidden, pair_order(hyper.heads)),
        ("attn_k", "self_attn.k_proj", kv_rows, hidden, pair_order(hyper.kv_heads)),
        ("attn_v", "self_attn.v_proj", kv_rows, hidden, None),
        ("attn_output", "self_attn.o_proj", hidden, q_rows, None),
        ("ffn_gate", "mlp.gate_proj", ffn, hidden, None),
        ("ffn_up", "mlp.up_proj", ffn, hidden, None),
        ("ffn_down", "mlp.down_proj", hidden, ffn, None),
    ] {
        let (weight, bias) = (format!("{gguf}.weight"), format!("{gguf}.bias"));
        add(&weight, &format!("{canonical}.weight"), vec![rows, cols], true, paired);
        add(&bias, &format!("{canonical}.bias"), vec![rows], false, paired);
    }
}

/// Gives each tensor of the file its place in the plan, in file order.
fn bind(
    file: &Arc<GgufFile>,
    family: &Family,
    plan: &[Planned],
    notes: &mut Vec<String>,
) -> Result<Vec<SourceTensor>, GgufError> {
    let by_name: HashMap<&str, &Planned> = plan.iter().map(|p| (p.gguf.as_str(), p)).collect();
    let mut tensors = Vec::new();
    for (index, record) in file.tensors().iter().enumerate() {
        if let Some(planned) = by_name.get(record.name.as_str()) {
            check_shape(record, &planned.shape)?;
            tensors.push(source_tensor(file, index, record, planned)?);
        } else if record.name == DIVISORS && family.frequency_divisors {
            // Becomes `rope_scaling`.
        } else if record.name.starts_with("blk.") && record.name.contains(IGNORED_STEM) {
            notes.push(format!("tensor `{}` is left out: it follows from the metadata", record.name));
        } else {
            let arch = family.arch.to_owned();
            return Err(GgufError::UnknownTensor { name: record.name.clone(), arch });
        }
    }
    match plan.iter().find(|p| p.required && file.find(&p.gguf).is_none()) {
        Some(missing) => Err(GgufError::MissingTensor { name: missing.gguf.clone() }),
        None => Ok(tensors),
    }
}

fn check_shape(record: &TensorRecord, expected: &[u64]) -> Result<(), GgufError> {
    if record.shape == expected {
        Ok(())
    } else {
        Err(GgufError::Shape { name: record.name.clone(), expected: expected.to_vec(), found: record.shape.clone() })
    }
}

fn source_tensor(
    file: &Arc<GgufFile>,
    index: usize,
    record: &TensorRecord,
    planned: &Planned,
) -> Result<SourceTensor, GgufError> {
    let ggml_type = record.ggml_type()?;
    let shape = record
        .shape
        .iter()
        .map(|&d| u32::try_from(d))
        .collect::<Result<Vec<u32>, _>>()
        .map_err(|_| GgufError::malformed(format!("tensor `{}`", record.name), "is too large"))?;
    let (file, paired) = (Arc::clone(file), planned.paired);
    let load: LoadFn = Box::new(move || read_values(&file, index, ggml_type, paired).map_err(ConvertError::from));
    let native = match ggml_type {
        GgmlType::F32 => NativeDtype::F32,
        GgmlType::F16 => NativeDtype::F16,
        GgmlType::Bf16 => NativeDtype::Bf16,
        _ => NativeDtype::Quantised,
    };
    Ok(SourceTensor { name: planned.canonical.clone(), shape, native, load })
}

fn read_values(
    file: &GgufFile,
    index: usize,
    ggml_type: GgmlType,
    paired: Option<PairOrder>,
) -> Result<Vec<f32>, GgufError> {
    let record = file.tensors().get(index).ok_or(GgufError::FileChanged)?;
    let values = dequantize(ggml_type, file.data(record)?)?;
    Ok(match paired {
        Some(order) => order.undo(&values),
        None => values,
    })
}

/// Row order of q and k where RoPE turns neighbouring pairs: in each head, rows 2j and 2j + 1 of
/// the rotary part are what the half-split form has in rows j and j + rotary_dim / 2.
#[derive(Debug, Clone, Copy)]
struct PairOrder {
    heads: usize,
    head_dim: usize,
    rotary_dim: usize,
}

impl PairOrder {
    /// The rows in half-split order; `values` is row-major with `heads · head_dim` rows (a bias
    /// has rows of one value).
    fn undo(self, values: &[f32]) -> Vec<f32> {
        let rows = self.heads * self.head_dim;
        let cols = values.len().checked_div(rows).unwrap_or(0);
        let half = self.rotary_dim / 2;
        let mut out = Vec::with_capacity(values.len());
        for head in 0..self.heads {
            for row in 0..self.head_dim {
                let stored = if row >= self.rotary_dim {
                    row
                } else if row < half {
                    2 * row
                } else {
                    2 * (row - half) + 1
                };
                let start = (head * self.head_dim + stored) * cols;
                out.extend(values.iter().skip(start).take(cols));
            }
        }
        out
    }
}

fn rope_scaling(file: &GgufFile, family: &Family, hyper: &Hyper) -> Result<Option<RopeScaling>, GgufError> {
    let metadata = file.metadata();
    let stated = rope::from_metadata(metadata, family.arch)?;
    let Some(index) = file.find(DIVISORS) else { return Ok(stated) };
    let record = file.tensors().get(index).ok_or(GgufError::FileChanged)?;
    if stated.is_some() {
        let reason = "rope.scaling.* asks for another scaling at the same time".to_owned();
        return Err(GgufError::RopeFreqs { reason });
    }
    let divisors = dequantize(record.ggml_type()?, file.data(record)?)?;
    let original = metadata.unsigned(&format!("{}.rope.scaling.original_context_length", family.arch))?;
    rope::from_divisors(&divisors, hyper.rotary_dim, hyper.rope_theta, original)
}

fn arch(family: &Family, hyper: &Hyper, vocab_size: usize, tied: bool, rope_scaling: Option<RopeScaling>) -> ModelArch {
    ModelArch {
        arch_name: family.arch.to_owned(),
        hidden_size: hyper.hidden,
        intermediate_size: hyper.ffn,
        num_layers: hyper.layers,
        num_attention_heads: hyper.heads,
        num_kv_heads: hyper.kv_heads,
        head_dim: hyper.head_dim,
        vocab_size,
        layer_types: vec![LayerType::FullAttention; hyper.layers],
        rms_norm_eps: hyper.eps,
        rope_theta: hyper.rope_theta,
        tie_word_embeddings: tied,
        partial_rotary_factor: hyper.partial_rotary_factor(),
        sliding_window: hyper.sliding_window,
        max_position_embeddings: hyper.context,
        rope_scaling,
        ..ModelArch::default()
    }
}

fn header(
    arch: ModelArch,
    tensors: &[SourceTensor],
    tokenizer: &RebuiltTokenizer,
    metadata: &Metadata,
) -> Result<Header, GgufError> {
    let layers = arch.num_layers;
    // The pipeline replaces the label; what the source held is not one of the labels.
    let mut header = Header::new(arch, QuantType::F32);
    header.extensions = header.implied_extensions().into_iter().map(str::to_owned).collect();
    if needs_linear_bias(tensors, layers) {
        header.extensions.push("linear_bias".to_owned());
    }
    header.tokenizer_config = Some(TokenizerConfig {
        chat_template: tokenizer.chat_template.clone(),
        eos_token_ids: tokenizer.special.ends(),
        bos_token_id: tokenizer.special.bos,
        pad_token_id: tokenizer.special.pad,
    });
    header.generation = generation(metadata)?;
    Ok(header)
}

/// True when there is a bias other than those of q, k and v together in a layer.
fn needs_linear_bias(tensors: &[SourceTensor], layers: usize) -> bool {
    let mut qkv = vec![0usize; layers];
    for tensor in tensors.iter().filter(|t| t.name.ends_with(".bias")) {
        let rest = tensor.name.strip_prefix("model.layers.").unwrap_or("");
        let (layer, stem) = rest.split_once('.').unwrap_or(("", ""));
        let is_qkv = ["q", "k", "v"].iter().any(|p| stem == format!("self_attn.{p}_proj.bias"));
        match layer.parse::<usize>().ok().and_then(|layer| qkv.get_mut(layer)) {
            Some(count) if is_qkv => *count += 1,
            _ => return true,
        }
    }
    qkv.iter().any(|&count| count != 0 && count != 3)
}

/// The sampling defaults that `general.sampling.*` recommends.
fn generation(metadata: &Metadata) -> Result<Option<GenerationDefaults>, GgufError> {
    let number = |name: &str| {
        let value = metadata.number(&format!("general.sampling.{name}"))?;
        Ok::<_, GgufError>(value.map(|v| v as f32))
    };
    let top_k = metadata.unsigned("general.sampling.top_k")?;
    let defaults = GenerationDefaults {
        temperature: number("temp")?,
        top_p: number("top_p")?,
        min_p: number("min_p")?,
        repetition_penalty: number("penalty_repeat")?,
        top_k: top_k.and_then(|k| u32::try_from(k).ok()),
        do_sample: None,
    };
    Ok((defaults != GenerationDefaults::default()).then_some(defaults))
}
