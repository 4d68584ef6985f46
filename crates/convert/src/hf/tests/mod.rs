//! Whole checkpoints: fixtures as they are, and copies with one thing changed.

mod convert;
mod deepseek_v3;
mod gemma;
mod hybrid;
mod layouts;
mod lfm2;
mod models_page;
mod moe;
mod refusals;
mod variants;

use std::path::{Path, PathBuf};

use ::safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::Value;

use super::*;

/// The directory with the model fixtures.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models")
}

/// One tensor of a safetensors file.
struct Stored {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

impl Stored {
    fn new(name: &str, dtype: Dtype, shape: &[usize]) -> Self {
        let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        Self { name: name.to_owned(), dtype, shape: shape.to_vec(), bytes: vec![0; len] }
    }
}

/// A copy of a fixture that a test may change.
struct Checkpoint {
    dir: tempfile::TempDir,
}

impl Checkpoint {
    fn of(fixture: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for entry in std::fs::read_dir(fixtures().join(fixture)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap();
            // Golden values are large and not part of a checkpoint.
            if name != "golden.json" {
                std::fs::write(dir.path().join(name), std::fs::read(&path).unwrap()).unwrap();
            }
        }
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn import(&self) -> Result<ImportedModel, ConvertError> {
        HfSource::local(self.path()).unwrap().import()
    }

    /// The message of the import's error.
    fn refusal(&self) -> String {
        self.import().unwrap_err().to_string()
    }

    /// Sets a key of a JSON file.
    fn set(&self, file: &str, key: &str, value: Value) {
        let path = self.path().join(file);
        let mut json: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        json[key] = value;
        std::fs::write(path, json.to_string()).unwrap();
    }

    /// Changes the tensors of the single weights file.
    fn edit(&self, change: impl FnOnce(&mut Vec<Stored>)) {
        let path = self.path().join(super::safetensors::SINGLE);
        let bytes = std::fs::read(&path).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let mut tensors: Vec<Stored> = file
            .tensors()
            .into_iter()
            .map(|(name, view)| Stored {
                name,
                dtype: view.dtype(),
                shape: view.shape().to_vec(),
                bytes: view.data().to_vec(),
            })
            .collect();
        change(&mut tensors);
        let views =
            tensors.iter().map(|t| (t.name.as_str(), TensorView::new(t.dtype, t.shape.clone(), &t.bytes).unwrap()));
        std::fs::write(path, ::safetensors::serialize(views, None).unwrap()).unwrap();
    }
}
