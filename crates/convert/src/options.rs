//! What the caller may choose about a conversion.

use cortiq_quant::Encoding;

use crate::policy::{Override, Policy};

/// Options of [`crate::convert`] and [`crate::import_gguf`].
#[derive(Debug, Clone)]
pub struct ConvertOptions {
    /// How matrices are stored.
    pub encoding: Encoding,
    /// Which rules decide about everything that is not an ordinary matrix.
    pub policy: Policy,
    /// Exceptions by tensor name; the last one that matches wins.
    pub overrides: Vec<Override>,
    /// Replace an existing output file.
    pub overwrite: bool,
    /// Record blake3 digests of the tensors in the header.
    pub digests: bool,
}

impl ConvertOptions {
    /// Options with `encoding` for matrices, the default policy, digests on, no overwriting.
    pub fn new(encoding: Encoding) -> Self {
        Self { encoding, policy: Policy::Default, overrides: Vec::new(), overwrite: false, digests: true }
    }

    /// Chooses the storage policy.
    #[must_use]
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// Adds an exception: tensors whose name matches `pattern` (a glob) are stored as `encoding`.
    #[must_use]
    pub fn with_override(mut self, pattern: impl Into<String>, encoding: Encoding) -> Self {
        self.overrides.push(Override { pattern: pattern.into(), encoding });
        self
    }

    /// Says whether an existing output is replaced.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> Self {
        self.overwrite = overwrite;
        self
    }

    /// Says whether digests are recorded.
    #[must_use]
    pub fn digests(mut self, digests: bool) -> Self {
        self.digests = digests;
        self
    }
}
