//! The golden fixtures (fixtures/README.md).

use std::path::{Path, PathBuf};

use cortiq_convert::{ConvertOptions, HfSource, NoProgress, convert};
use cortiq_quant::Encoding;
use serde::Deserialize;

/// Fixture models whose architecture is dense attention.
pub const DENSE_MODELS: [&str; 8] = [
    "llama_gqa",
    "llama_tied_bias",
    "llama3_rope",
    "llama_linear_rope",
    "mistral_swa",
    "qwen2_bias",
    "qwen3",
    "qwen3_yarn",
];

/// Reference values of a model.
#[derive(Debug, Deserialize)]
pub struct Golden {
    /// Prompts of 1, 7, 64 and 300 tokens with their results.
    pub sequences: Vec<GoldenSequence>,
    /// Frequencies as transformers computed them.
    pub rope: GoldenRope,
}

/// Rotary table of a model.
#[derive(Debug, Deserialize)]
pub struct GoldenRope {
    /// Radians per position and pair.
    pub inv_freq: Vec<f32>,
    /// Factor on cosine and sine.
    pub attention_scaling: f32,
}

/// One prompt with its results.
#[derive(Debug, Deserialize)]
pub struct GoldenSequence {
    /// The prompt.
    pub input_ids: Vec<u32>,
    /// Text that encodes to the prompt, for some.
    pub text: Option<String>,
    /// Logits of the last position.
    pub last_logits: Vec<f32>,
    /// Logits of all positions, for the prompt of 7.
    pub all_logits: Option<Vec<Vec<f32>>>,
    /// Greedy continuation.
    pub greedy: Greedy,
}

/// A greedy continuation.
#[derive(Debug, Deserialize)]
pub struct Greedy {
    /// The tokens.
    pub tokens: Vec<u32>,
    /// Best minus second-best logit at each step.
    pub top2_margin: Vec<f32>,
}

impl Greedy {
    /// How many leading tokens must be equal: up to the first step whose margin is below `margin`.
    pub fn certain(&self, margin: f32) -> usize {
        self.top2_margin.iter().position(|m| *m < margin).unwrap_or(self.tokens.len())
    }
}

/// The folder `fixtures/` of the project.
pub fn fixtures_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// The folder of a fixture model.
pub fn model_dir(name: &str) -> PathBuf {
    fixtures_dir().join("models").join(name)
}

/// Reference values of a fixture model.
///
/// # Panics
/// When the fixture is absent or broken.
#[allow(clippy::expect_used)]
pub fn golden(name: &str) -> Golden {
    let text = std::fs::read_to_string(model_dir(name).join("golden.json")).expect("golden.json of the fixture");
    serde_json::from_str(&text).expect("golden.json parses")
}

/// Converts a fixture model to `folder/<name>.cmf`.
///
/// # Panics
/// When the conversion fails.
#[allow(clippy::expect_used)]
pub fn convert_fixture(name: &str, encoding: Encoding, folder: &Path) -> PathBuf {
    let output = folder.join(format!("{name}.cmf"));
    let options = ConvertOptions::new(encoding).overwrite(true);
    let source = HfSource::local(&model_dir(name)).expect("the fixture opens");
    convert(&source, &output, &options, &NoProgress).expect("the fixture converts");
    output
}
