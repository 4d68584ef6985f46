//! Hugging Face checkpoints: a directory or a repository of the model hub.
//!
//! A family file (`hf/<family>.rs`) turns `config.json` into the header's arch and the list of
//! tensors; everything else here is the same for all families. See docs/adding-a-model-family.md.

mod config;
mod decoder;
mod deepseek_v3;
#[cfg(feature = "hub")]
mod download;
mod family;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod generation;
mod hub;
mod hybrid;
mod lfm2;
mod lfm2_moe;
mod llama;
mod mistral;
mod mixtral;
mod moe;
mod olmo2;
mod phi3;
mod qwen2;
mod qwen2_moe;
mod qwen3;
mod qwen3_5;
mod qwen3_5_moe;
mod qwen3_moe;
mod qwen3_next;
mod rope;
mod safetensors;
mod smollm3;
mod tokenizer;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use cortiq_cmf::{Header, QuantType};

use crate::pipeline::WriteSource;
use crate::{ConvertError, ImportedModel, Progress, SourceTensor};
use config::{JsonFile, Object};
use family::{Family, Layout, Mapping, Piece};
use safetensors::RawTensor;

pub use hub::HubOptions;

/// The file with the configuration.
const CONFIG: &str = "config.json";

/// A checkpoint whose files are all on this machine.
#[derive(Debug, Clone)]
pub struct HfSource {
    label: String,
    dir: PathBuf,
}

impl HfSource {
    /// Opens `source`: a directory if there is one of that name, else a repository id
    /// `owner/name[@revision]`, which is downloaded into the cache where needed, as told to
    /// `progress`.
    ///
    /// # Errors
    /// Neither a directory nor an id; files that cannot be fetched.
    pub fn open(source: &str, hub: &HubOptions, progress: &dyn Progress) -> Result<Self, ConvertError> {
        let path = Path::new(source);
        if path.exists() {
            return Self::local(path);
        }
        let bad = || ConvertError::BadSource { source_text: source.to_owned() };
        let repo = hub::RepoId::parse(source).ok_or_else(bad)?;
        Ok(Self { label: source.to_owned(), dir: hub::fetch(&repo, hub, progress)? })
    }

    /// The checkpoint in the directory `dir`.
    ///
    /// # Errors
    /// `dir` is not a directory.
    pub fn local(dir: &Path) -> Result<Self, ConvertError> {
        if !dir.is_dir() {
            return Err(ConvertError::io(dir, std::io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self { label: dir.display().to_string(), dir: dir.to_path_buf() })
    }

    /// The directory with the files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The families that can be imported.
    pub fn families() -> Vec<&'static str> {
        family::FAMILIES.iter().map(|f| f.name).collect()
    }

    /// Reads configuration, tokenizer and the tensor directory; no values yet.
    ///
    /// # Errors
    /// See [`ConvertError`]: everything that is missing, unknown, unsupported or does not fit.
    pub fn import(&self) -> Result<ImportedModel, ConvertError> {
        let hint = || format!("it was looked for in {}", self.dir.display());
        let file = JsonFile::read(&self.dir, CONFIG)?
            .ok_or_else(|| ConvertError::MissingFile { file: CONFIG.to_owned(), hint: hint() })?;
        let text = file.text()?;
        let family = family::find(&file.object(), &text)?;
        refuse_quantised(&text)?;
        let layout = (family.read)(&text)?;
        let generation_file = JsonFile::read(&self.dir, generation::FILE)?;
        let generation = generation_file.as_ref().map(JsonFile::object);
        let text_side = tokenizer::read(&self.dir, &text, generation.as_ref(), layout.arch.vocab_size)?;

        let mut notes = text_side.notes;
        let raw = safetensors::open(&self.dir)?;
        let tensors = match_tensors(family, &layout, &raw, &mut notes)?;
        let mut header = Header::new(layout.arch, QuantType::F32);
        if !tensors.iter().any(|t| t.name.starts_with(family::OPTIONAL)) {
            header.arch.mtp = None;
        }
        header.tokenizer_config = Some(text_side.config);
        header.generation = generation.as_ref().map(generation::defaults).transpose()?.flatten();
        let mut model = ImportedModel { header, tensors, tokenizer_json: Some(text_side.json), notes };
        model.declare_extensions();
        Ok(model)
    }

    /// What the pipeline needs to know about this source.
    pub fn write_source(&self) -> WriteSource {
        let mut files = safetensors::weight_files(&self.dir);
        files.extend(hub::SMALL_FILES.into_iter().map(|file| self.dir.join(file)).filter(|path| path.exists()));
        WriteSource { label: self.label.clone(), label_key: "source_model", tool: "cortiq convert", files }
    }
}

/// Checkpoints that are quantised already have other tensors than their family.
fn refuse_quantised(config: &Object<'_>) -> Result<(), ConvertError> {
    match config.child("quantization_config")? {
        None => Ok(()),
        Some(quantised) => {
            let method = quantised.string("quant_method")?.unwrap_or("unknown");
            Err(config.unsupported("quantization_config", method, "only unquantised checkpoints are read"))
        }
    }
}

/// Pairs the tensors of the checkpoint with those that the family needs, in checkpoint order.
fn match_tensors(
    family: &Family,
    layout: &Layout,
    raw: &[RawTensor],
    notes: &mut Vec<String>,
) -> Result<Vec<SourceTensor>, ConvertError> {
    let mut wanted: HashMap<&str, &[u64]> =
        layout.tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
    let mut skipped = Skipped::default();
    let mut tensors = Vec::with_capacity(layout.tensors.len());
    let mut seen = std::collections::HashSet::new();
    for tensor in raw {
        let pieces = match (family.rename)(&tensor.name, &layout.arch) {
            Mapping::Keep(name) if name == "lm_head.weight" && layout.arch.tie_word_embeddings => {
                skipped.add("the head is the embedding (tie_word_embeddings)", &tensor.name);
                continue;
            }
            Mapping::Keep(name) => vec![(name, None)],
            Mapping::Copies(names) => names.into_iter().map(|name| (name, None)).collect(),
            Mapping::Split(pieces) => split(tensor, pieces)?,
            Mapping::Skip(reason) => {
                skipped.add(reason, &tensor.name);
                continue;
            }
        };
        for (name, part) in pieces {
            let tensor = part.as_ref().unwrap_or(tensor);
            if seen.contains(&name) {
                return Err(ConvertError::DuplicateTensor { name });
            }
            let Some(expected) = wanted.remove(name.as_str()) else {
                return Err(ConvertError::UnknownTensor { name: tensor.name.clone(), family: family.name.to_owned() });
            };
            if tensor.shape != expected {
                let (expected, found) = (expected.to_vec(), tensor.shape.clone());
                return Err(ConvertError::Shape { name: tensor.name.clone(), expected, found });
            }
            tensors.push(source_tensor(tensor, name.clone())?);
            seen.insert(name);
        }
    }
    // The list is in execution order: the first one missing is the most telling.
    let optional = !seen.iter().any(|name: &String| name.starts_with(family::OPTIONAL));
    let needed = |name: &str| !(optional && name.starts_with(family::OPTIONAL));
    if let Some(missing) = layout.tensors.iter().find(|t| wanted.contains_key(t.name.as_str()) && needed(&t.name)) {
        return Err(ConvertError::MissingTensor { name: missing.name.clone() });
    }
    notes.extend(skipped.notes());
    Ok(tensors)
}

/// Cuts a tensor into its pieces, which must have all its rows between them.
fn split(tensor: &RawTensor, pieces: Vec<Piece>) -> Result<Vec<(String, Option<RawTensor>)>, ConvertError> {
    let expected: u64 = pieces.iter().fold(0, |sum, piece| sum.saturating_add(piece.height()));
    if expected != tensor.rows() {
        let expected = vec![expected, tensor.shape.last().copied().unwrap_or(1)];
        return Err(ConvertError::Shape { name: tensor.name.clone(), expected, found: tensor.shape.clone() });
    }
    pieces.into_iter().map(|piece| Ok((piece.name, Some(tensor.select_rows(&piece.rows)?)))).collect()
}

fn source_tensor(tensor: &RawTensor, name: String) -> Result<SourceTensor, ConvertError> {
    let too_large = || ConvertError::Shape {
        name: tensor.name.clone(),
        expected: vec![u64::from(u32::MAX); tensor.shape.len()],
        found: tensor.shape.clone(),
    };
    let shape: Result<Vec<u32>, _> = tensor.shape.iter().map(|&d| u32::try_from(d)).collect();
    let shape = shape.map_err(|_| too_large())?;
    Ok(SourceTensor { name, shape, native: tensor.native()?, load: tensor.loader()? })
}

/// Counts tensors that are left out, by reason.
#[derive(Default)]
struct Skipped(Vec<(&'static str, usize, String)>);

impl Skipped {
    fn add(&mut self, reason: &'static str, name: &str) {
        match self.0.iter_mut().find(|(r, _, _)| *r == reason) {
            Some(entry) => entry.1 += 1,
            None => self.0.push((reason, 1, name.to_owned())),
        }
    }

    fn notes(self) -> impl Iterator<Item = String> {
        self.0.into_iter().map(|(reason, count, first)| match count {
            1 => format!("left out `{first}`: {reason}"),
            _ => format!("left out {count} tensors (`{first}`, …): {reason}"),
        })
    }
}
