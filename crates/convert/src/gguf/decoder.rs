//! From a file to the common form: an architecture file describes by a [`Family`] what the keys and tensors of its
//! architecture mean; everything else is here.

use std::collections::HashMap;
use std::sync::Arc;

use cortiq_cmf::{
    GenerationDefaults, Header, LayerType, ModelArch, NormStyle, QuantType, RopeScaling, TokenizerConfig,
};

use super::hyper::{HeadKeys, Hyper};
use super::keys::Keys;
use super::metadata::{Metadata, required};
use super::plan::{Plan, Planned, check_shape};
use super::reader::TensorRecord;
use super::tokenizer::{self, RebuiltTokenizer};
use super::values::Recipe;
use super::{GgmlType, GgufError, GgufFile, dequantize, rope};
use crate::{ConvertError, ImportedModel, LoadFn, NativeDtype, SourceTensor};

/// One architecture.
pub(super) struct Family {
    /// Value of `general.architecture`.
    pub(super) arch: &'static str,
    /// Which keys say how many heads there are.
    pub(super) heads: HeadKeys,
    /// Keys that have a meaning here; in other architectures they are refused.
    pub(super) reads: &'static [&'static str],
    /// Describes the model of a file.
    pub(super) build: fn(&Source<'_>) -> Result<Model, GgufError>,
}

/// A model as its architecture describes it.
pub(super) struct Model {
    pub(super) arch: ModelArch,
    pub(super) plan: Plan,
    pub(super) notes: Vec<String>,
}

/// What an architecture reads from.
pub(super) struct Source<'a> {
    pub(super) file: &'a GgufFile,
    pub(super) keys: Keys<'a>,
    pub(super) hyper: Hyper,
    pub(super) vocab_size: usize,
    /// There is no head besides the embedding.
    tied: bool,
}

const EMBEDDING: &str = "token_embd.weight";
const HEAD: &str = "output.weight";
const DIVISORS: &str = "rope_freqs.weight";
/// Tables of inverse frequencies that some old files carry in each layer; they follow from the
/// metadata.
const IGNORED_STEM: &str = "attn_rot_embd.";

/// Describes the model of `file`.
pub(super) fn import(file: &Arc<GgufFile>, family: &'static Family) -> Result<ImportedModel, GgufError> {
    let metadata = file.metadata();
    let keys = Keys { metadata, arch: family.arch };
    let hyper = Hyper::read(&keys, file.tensors().len(), family.heads, family.reads)?;
    let vocab_size = vocab_size(file, &hyper)?;
    let source = Source { file, keys, hyper, vocab_size, tied: file.find(HEAD).is_none() };
    let Model { arch, plan, mut notes } = (family.build)(&source)?;
    let tensors = bind(file, family, &plan, &mut notes)?;
    let tokenizer = tokenizer::rebuild(metadata)?;
    if tokenizer.token_count > vocab_size {
        let reason = format!("{} tokens, but the embedding has {vocab_size} rows", tokenizer.token_count);
        return Err(GgufError::bad_key(tokenizer::KEY_TOKENS, reason));
    }
    notes.extend(tokenizer.notes.iter().cloned());
    let header = header(arch, &tokenizer, metadata)?;
    let mut model = ImportedModel { header, tensors, tokenizer_json: Some(tokenizer.json), notes };
    model.declare_extensions();
    Ok(model)
}

/// Rows of the embedding.
fn vocab_size(file: &GgufFile, hyper: &Hyper) -> Result<usize, GgufError> {
    let missing = || GgufError::MissingTensor { name: EMBEDDING.to_owned() };
    let record = file.find(EMBEDDING).and_then(|i| file.tensors().get(i)).ok_or_else(missing)?;
    let rows = record.shape.first().copied().unwrap_or(0);
    check_shape(record, &[rows, hyper.hidden as u64])?;
    usize::try_from(rows).map_err(|_| GgufError::malformed(EMBEDDING, "has too many rows"))
}

impl Source<'_> {
    /// Width of the model.
    pub(super) fn hidden(&self) -> u64 {
        self.hyper.hidden as u64
    }

    /// Width of a dense FFN.
    pub(super) fn ffn(&self) -> Result<usize, GgufError> {
        required(&self.keys.key("feed_forward_length"), self.hyper.ffn)
    }

    /// True when the file has the tensor `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.file.find(name).is_some()
    }

    /// Shape of the tensor `name`, outermost first.
    pub(super) fn shape_of(&self, name: &str) -> Option<&[u64]> {
        self.file.find(name).and_then(|index| self.file.tensors().get(index)).map(|record| record.shape.as_slice())
    }

    /// The values of a small tensor.
    pub(super) fn values_of(&self, name: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let Some(index) = self.file.find(name) else { return Ok(None) };
        let record = self.file.tensors().get(index).ok_or(GgufError::FileChanged)?;
        dequantize(record.ggml_type()?, self.file.data(record)?).map(Some)
    }

    /// The arch of a decoder whose layers all have full attention without a window; `ffn` is the (nominal) FFN width.
    pub(super) fn arch(&self, arch_name: &str, ffn: usize, rope_scaling: Option<RopeScaling>) -> ModelArch {
        let hyper = &self.hyper;
        ModelArch {
            arch_name: arch_name.to_owned(),
            hidden_size: hyper.hidden,
            intermediate_size: ffn,
            num_layers: hyper.layers,
            num_attention_heads: hyper.heads,
            num_kv_heads: hyper.kv_heads,
            head_dim: hyper.head_dim,
            vocab_size: self.vocab_size,
            layer_types: vec![LayerType::FullAttention; hyper.layers],
            rms_norm_eps: hyper.eps,
            rope_theta: hyper.rope_theta,
            tie_word_embeddings: self.tied,
            partial_rotary_factor: hyper.partial_rotary_factor(),
            max_position_embeddings: hyper.context,
            rope_scaling,
            ..ModelArch::default()
        }
    }

    /// The scaling that the keys state.
    pub(super) fn rope_scaling(&self) -> Result<Option<RopeScaling>, GgufError> {
        rope::from_metadata(self.keys.metadata, self.keys.arch)
    }

    /// As [`Source::rope_scaling`], for architectures that may have frequency divisors instead.
    pub(super) fn rope_scaling_or_divisors(&self, plan: &mut Plan) -> Result<Option<RopeScaling>, GgufError> {
        let stated = self.rope_scaling()?;
        let Some(divisors) = self.values_of(DIVISORS)? else { return Ok(stated) };
        if stated.is_some() {
            let reason = "rope.scaling.* asks for another scaling at the same time".to_owned();
            return Err(GgufError::RopeFreqs { reason });
        }
        plan.consumed.push(DIVISORS.to_owned());
        let original = self.keys.metadata.unsigned(&self.keys.key("rope.scaling.original_context_length"))?;
        rope::from_divisors(&divisors, self.hyper.rotary_dim, self.hyper.rope_theta, original)
    }

    /// A plan with the tensors outside the layers; `norm` is the final norm's name in the file.
    pub(super) fn plan(&self, norm: &str, style: NormStyle) -> Plan {
        let (hidden, vocab) = (self.hidden(), self.vocab_size as u64);
        let mut plan = Plan::default();
        plan.add(EMBEDDING, "model.embed_tokens.weight", &[vocab, hidden]);
        let norm = plan.add(norm, "model.norm.weight", &[hidden]);
        if style == NormStyle::Gemma {
            norm.values(super::plan::Values::MinusOne);
        }
        if !self.tied {
            plan.add(HEAD, "lm_head.weight", &[vocab, hidden]);
        }
        plan
    }
}

/// Gives each tensor of the file its places in the plan, in file order.
fn bind(
    file: &Arc<GgufFile>,
    family: &Family,
    plan: &Plan,
    notes: &mut Vec<String>,
) -> Result<Vec<SourceTensor>, GgufError> {
    let mut by_name: HashMap<&str, Vec<&Planned>> = HashMap::new();
    let mut seconds: HashMap<&str, &[u64]> = HashMap::new();
    for planned in &plan.tensors {
        by_name.entry(&planned.gguf).or_default().push(planned);
        seconds.extend(planned.also.as_ref().map(|(name, shape)| (name.as_str(), shape.as_slice())));
    }
    let mut tensors = Vec::new();
    for (index, record) in file.tensors().iter().enumerate() {
        if let Some(pieces) = by_name.get(record.name.as_str()) {
            for planned in pieces {
                check_shape(record, &planned.stored)?;
                tensors.push(source_tensor(file, index, record, planned)?);
            }
        } else if let Some(shape) = seconds.get(record.name.as_str()) {
            check_shape(record, shape)?;
            record.ggml_type()?;
        } else if plan.consumed.contains(&record.name) {
            // The architecture has made something else of it.
        } else if record.name.starts_with("blk.") && record.name.contains(IGNORED_STEM) {
            notes.push(format!("tensor `{}` is left out: it follows from the metadata", record.name));
        } else {
            let arch = family.arch.to_owned();
            return Err(GgufError::UnknownTensor { name: record.name.clone(), arch });
        }
    }
    let needed = plan.tensors.iter().filter(|p| p.required);
    let mut names = needed.flat_map(|p| [Some(&p.gguf), p.also.as_ref().map(|(name, _)| name)]).flatten();
    match names.find(|name| file.find(name).is_none()) {
        Some(missing) => Err(GgufError::MissingTensor { name: missing.clone() }),
        None => Ok(tensors),
    }
}

fn source_tensor(
    file: &Arc<GgufFile>,
    index: usize,
    record: &TensorRecord,
    planned: &Planned,
) -> Result<SourceTensor, GgufError> {
    let shape = planned
        .shape
        .iter()
        .map(|&d| u32::try_from(d))
        .collect::<Result<Vec<u32>, _>>()
        .map_err(|_| GgufError::malformed(format!("tensor `{}`", record.name), "is too large"))?;
    let native = match record.ggml_type()? {
        GgmlType::F32 => NativeDtype::F32,
        GgmlType::F16 => NativeDtype::F16,
        GgmlType::Bf16 => NativeDtype::Bf16,
        _ => NativeDtype::Quantised,
    };
    let also = planned.also.as_ref().and_then(|(name, _)| file.find(name));
    let (recipe, file) = (Recipe::new(planned), Arc::clone(file));
    let load: LoadFn = Box::new(move || recipe.read(&file, index, also).map_err(ConvertError::from));
    Ok(SourceTensor { name: planned.name.clone(), shape, native, load })
}

fn header(arch: ModelArch, tokenizer: &RebuiltTokenizer, metadata: &Metadata) -> Result<Header, GgufError> {
    // The pipeline replaces the label; what the source held is not one of the labels.
    let mut header = Header::new(arch, QuantType::F32);
    header.tokenizer_config = Some(TokenizerConfig {
        chat_template: tokenizer.chat_template.clone(),
        eos_token_ids: tokenizer.special.ends(),
        bos_token_id: tokenizer.special.bos,
        pad_token_id: tokenizer.special.pad,
    });
    header.generation = generation(metadata)?;
    Ok(header)
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
