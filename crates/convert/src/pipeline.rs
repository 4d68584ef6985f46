//! Writes an imported model: load one tensor, encode it, hand it to the writer, forget it.
//!
//! While one tensor is encoded the next one is loaded, so at most two are in memory.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use cortiq_cmf::{CmfWriter, Sections, TensorPlan, WriteOptions, sorted_json};
use cortiq_quant::{Encoding, Fit, encode_fitted};

use crate::names::{Kind, kind};
use crate::policy::{Choice, Planner, quant_type};
use crate::report::{DtypeTotal, StoredRow};
use crate::{ConvertError, ConvertOptions, ConvertReport, ImportedModel, Progress, SourceTensor};

/// Where a model comes from.
#[derive(Debug, Clone)]
pub struct WriteSource {
    /// The source as the user named it, for the provenance record.
    pub label: String,
    /// Provenance key of the label: `source_model` (Hugging Face) or `source` (GGUF).
    pub label_key: &'static str,
    /// The command for the provenance record, e.g. `cortiq convert`.
    pub tool: &'static str,
    /// The source's files; the output must not be one of them.
    pub files: Vec<PathBuf>,
}

/// Writes `model` to `output` as `options` say.
///
/// The output appears under its name only when it is complete; on an error nothing is left.
///
/// # Errors
/// The output exists or is a file of the source; a tensor that does not load or cannot be encoded;
/// whatever the writer reports.
pub fn write_model(
    mut model: ImportedModel,
    source: &WriteSource,
    output: &Path,
    options: &ConvertOptions,
    progress: &dyn Progress,
) -> Result<ConvertReport, ConvertError> {
    check_output(output, source, options.overwrite)?;
    let planner = Planner::new(options)?;
    planner.check_overrides(&model.tensors)?;
    planner.arrange(&mut model.tensors);
    model.declare_extensions();
    let choices: Vec<Choice> = model.tensors.iter().map(|t| planner.choose(t)).collect();
    let mut notes = std::mem::take(&mut model.notes);
    notes.extend(notes_about(&model.tensors, &choices));

    model.header.quant_type = quant_type(&options.encoding);
    model.header.provenance = Some(provenance(source, &model.tensors));
    let plan = model
        .tensors
        .iter()
        .zip(&choices)
        .map(|(t, c)| TensorPlan { name: t.name.clone(), dtype: c.encoding.dtype(), shape: t.shape.clone() })
        .collect();
    let sections = Sections { masks: None, vocab: model.tokenizer_json.take() };
    let write_options = WriteOptions { digests: options.digests, overwrite: options.overwrite };
    let mut writer = CmfWriter::create(output, model.header, plan, sections, write_options)?;

    let mut totals = Totals::default();
    stream(&model.tensors, &choices, options.policy.fit(), progress, |tensor, choice, payload| {
        totals.add(&tensor.name, &choice.encoding, payload.len() as u64);
        Ok(writer.write_tensor(payload)?)
    })?;
    let summary = writer.finish()?;
    progress.finish();
    Ok(ConvertReport {
        output: output.to_path_buf(),
        bytes: summary.bytes,
        tensors: totals.by_dtype(),
        rows: totals.rows(),
        notes,
    })
}

/// Loads and encodes all tensors in order and hands each payload to `write`.
fn stream(
    tensors: &[SourceTensor],
    choices: &[Choice],
    fit: Fit,
    progress: &dyn Progress,
    mut write: impl FnMut(&SourceTensor, &Choice, &[u8]) -> Result<(), ConvertError>,
) -> Result<(), ConvertError> {
    let size = |t: &SourceTensor| t.len().saturating_mul(4);
    progress.start(tensors.iter().map(size).fold(0, u64::saturating_add), tensors.len());
    let mut done = 0u64;
    std::thread::scope(|scope| {
        // No slots: the loader holds one tensor, the encoder another.
        let (sender, receiver) = sync_channel(0);
        let loader = scope.spawn(move || load_all(tensors, &sender));
        let result = tensors.iter().zip(choices).try_for_each(|(tensor, choice)| {
            let payload = encode_tensor(tensor, &choice.encoding, fit, next_values(&receiver, tensor)?)?;
            write(tensor, choice, &payload)?;
            done = done.saturating_add(size(tensor));
            progress.tensor(&tensor.name, done);
            Ok(())
        });
        // Hang up, so that the loader ends; joining it keeps a panic in it from crossing the scope.
        drop(receiver);
        match (result, loader.join()) {
            (Ok(()), Err(_)) => Err(ConvertError::LoaderPanicked),
            (result, _) => result,
        }
    })
}

type Loaded = Result<Vec<f32>, ConvertError>;

/// Loads the tensors in order until the other side hangs up.
fn load_all(tensors: &[SourceTensor], sender: &SyncSender<Loaded>) {
    for tensor in tensors {
        if sender.send((tensor.load)()).is_err() {
            return;
        }
    }
}

/// The values of `tensor`, whose turn it is, checked for their number.
fn next_values(receiver: &Receiver<Loaded>, tensor: &SourceTensor) -> Loaded {
    // The loader ends early only by panicking.
    let values = receiver.recv().map_err(|_| ConvertError::LoaderPanicked)??;
    if values.len() as u64 != tensor.len() {
        let (name, expected, found) = (tensor.name.clone(), tensor.len(), values.len() as u64);
        return Err(ConvertError::ValueCount { name, expected, found });
    }
    Ok(values)
}

/// Least magnitude that rounds to infinity in f16 (docs/cmf-format.md §6).
const F16_OVERFLOW: f32 = 65_520.0;

/// Encodes the values of one tensor; anything but a matrix counts as one row.
fn encode_tensor(
    tensor: &SourceTensor,
    encoding: &Encoding,
    fit: Fit,
    values: Vec<f32>,
) -> Result<Vec<u8>, ConvertError> {
    let (rows, cols) = match *tensor.shape.as_slice() {
        [rows, cols] => (rows as usize, cols as usize),
        _ => (1, values.len()),
    };
    if *encoding == Encoding::F16 && values.iter().any(|v| v.is_finite() && v.abs() >= F16_OVERFLOW) {
        return Err(ConvertError::F16Overflow { name: tensor.name.clone() });
    }
    encode_fitted(encoding, fit, &values, rows, cols)
        .map_err(|source| ConvertError::Encode { name: tensor.name.clone(), source })
}

/// Refuses an output that exists (unless `overwrite`) or that is a file of the source.
fn check_output(output: &Path, source: &WriteSource, overwrite: bool) -> Result<(), ConvertError> {
    if output.is_dir() {
        return Err(ConvertError::io(output, std::io::ErrorKind::IsADirectory.into()));
    }
    if let Ok(real) = output.canonicalize()
        && source.files.iter().any(|file| file.canonicalize().is_ok_and(|file| file == real))
    {
        return Err(ConvertError::OutputIsSource { path: output.to_path_buf() });
    }
    if !overwrite && output.symlink_metadata().is_ok() {
        return Err(ConvertError::OutputExists { path: output.to_path_buf() });
    }
    Ok(())
}

/// The header's provenance record (docs/cmf-format.md §3.13).
fn provenance(source: &WriteSource, tensors: &[SourceTensor]) -> serde_json::Value {
    let mut bytes: BTreeMap<&str, u64> = BTreeMap::new();
    for tensor in tensors {
        let total = bytes.entry(tensor.native.name()).or_default();
        *total = total.saturating_add(tensor.len());
    }
    let mut dtypes: Vec<_> = bytes.into_iter().collect();
    dtypes.sort_by_key(|&(name, count)| (std::cmp::Reverse(count), name));
    let dtypes: Vec<&str> = dtypes.into_iter().map(|(name, _)| name).collect();
    sorted_json(serde_json::json!({
        "tool": format!("{} {}", source.tool, env!("CARGO_PKG_VERSION")),
        source.label_key: source.label,
        "original_dtype": dtypes.join(","),
    }))
}

/// What the report says about tensors that were not stored as asked.
fn notes_about(tensors: &[SourceTensor], choices: &[Choice]) -> Vec<String> {
    let mut fallbacks: BTreeMap<(&str, u32), (usize, &str)> = BTreeMap::new();
    let mut notes = Vec::new();
    for (tensor, choice) in tensors.iter().zip(choices) {
        if choice.forced {
            let dtype = choice.encoding.dtype().name();
            notes.push(format!("`{}` is sensitive and was stored as {dtype} by an override", tensor.name));
        }
        if let Some(wanted) = &choice.instead_of {
            let cols = tensor.shape.last().copied().unwrap_or(0);
            let entry = fallbacks.entry((wanted.dtype().name(), cols)).or_insert((0, &tensor.name));
            entry.0 += 1;
        }
    }
    notes.extend(fallbacks.into_iter().map(|((dtype, cols), (count, first))| {
        let what = if count == 1 { format!("`{first}`") } else { format!("{count} matrices (`{first}`, …)") };
        format!("{what} with {cols} columns cannot be stored as {dtype}; stored as q8_2f")
    }));
    notes
}

/// Sums for the report.
#[derive(Default)]
struct Totals(BTreeMap<(Kind, &'static str), DtypeTotal>);

impl Totals {
    fn add(&mut self, name: &str, encoding: &Encoding, bytes: u64) {
        self.0.entry((kind(name), encoding.dtype().name())).or_default().add(bytes);
    }

    fn by_dtype(&self) -> BTreeMap<String, DtypeTotal> {
        let mut totals: BTreeMap<String, DtypeTotal> = BTreeMap::new();
        for ((_, dtype), part) in &self.0 {
            let total = totals.entry((*dtype).to_owned()).or_default();
            total.count += part.count;
            total.bytes = total.bytes.saturating_add(part.bytes);
        }
        totals
    }

    fn rows(&self) -> Vec<StoredRow> {
        self.0.iter().map(|(&(kind, dtype), &total)| StoredRow { kind: kind.label(), dtype, total }).collect()
    }
}

#[cfg(test)]
mod tests;
