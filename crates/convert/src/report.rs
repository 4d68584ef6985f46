//! Progress during a conversion and the report after it.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// Receives the progress of one conversion. Called from the converting thread only.
pub trait Progress {
    /// `done_bytes` of the `total_bytes` of `file` are downloaded. Before [`Progress::start`]; not
    /// called for files that are here already.
    fn download(&self, _file: &str, _done_bytes: u64, _total_bytes: u64) {}
    /// The work is known: `total_bytes` is the size of all values as f32, `tensors` their number.
    fn start(&self, total_bytes: u64, tensors: usize);
    /// Tensor `name` is written; `done_bytes` of `total_bytes` are done.
    fn tensor(&self, name: &str, done_bytes: u64);
    /// Everything is written.
    fn finish(&self);
}

/// Ignores all progress.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoProgress;

impl Progress for NoProgress {
    fn start(&self, _total_bytes: u64, _tensors: usize) {}
    fn tensor(&self, _name: &str, _done_bytes: u64) {}
    fn finish(&self) {}
}

/// Number and size of tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DtypeTotal {
    /// Number of tensors.
    pub count: usize,
    /// Their payload bytes.
    pub bytes: u64,
}

impl DtypeTotal {
    /// Counts one more tensor of `bytes` bytes.
    pub fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// One line of the table "what was stored as what".
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRow {
    /// Kind of tensor: embedding, attention, ffn, norms, …
    pub kind: &'static str,
    /// Name of the dtype.
    pub dtype: &'static str,
    /// Number and size.
    pub total: DtypeTotal,
}

/// What a conversion produced.
#[derive(Debug, Clone)]
pub struct ConvertReport {
    /// The output file.
    pub output: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Totals by dtype name.
    pub tensors: BTreeMap<String, DtypeTotal>,
    /// Totals by kind and dtype, in the order of the network.
    pub rows: Vec<StoredRow>,
    /// What was skipped, changed or fell back to another dtype.
    pub notes: Vec<String>,
}
