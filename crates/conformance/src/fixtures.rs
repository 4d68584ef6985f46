//! The golden fixtures (fixtures/README.md).

use std::path::{Path, PathBuf};

use cortiq_convert::{ConvertOptions, HfSource, NoProgress, convert};
use cortiq_quant::Encoding;
use serde::Deserialize;

/// All fixture models.
pub const MODELS: [&str; 29] = [
    "deepseek_v3",
    "gemma",
    "gemma2",
    "gemma3_text",
    "gemma3_vl_layout",
    "gemma4",
    "gemma4_vl_layout",
    "lfm2",
    "lfm2_moe",
    "llama3_rope",
    "llama_gqa",
    "llama_linear_rope",
    "llama_tied_bias",
    "mistral_swa",
    "mixtral",
    "olmo2",
    "phi3",
    "phi3_longrope",
    "qwen2_bias",
    "qwen2_moe",
    "qwen3",
    "qwen3_5",
    "qwen3_5_moe",
    "qwen3_5_moe_vl_layout",
    "qwen3_5_vl_layout",
    "qwen3_moe",
    "qwen3_next",
    "qwen3_yarn",
    "smollm3",
];

/// Fixture models with a prediction head.
pub const MTP_MODELS: [&str; 3] = ["qwen3_5_moe_vl_layout", "qwen3_5_vl_layout", "qwen3_next"];

/// Reference values of a model.
#[derive(Debug, Deserialize)]
pub struct Golden {
    /// Prompts of 1, 7, 64 and 300 tokens with their results.
    pub sequences: Vec<GoldenSequence>,
    /// Frequencies as transformers computed them.
    pub rope: GoldenRope,
}

/// Rotary tables of a model: one, or one per kind of layer.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum GoldenRope {
    /// All layers have the same.
    Same {
        /// Radians per position and pair.
        inv_freq: Vec<f32>,
        /// Factor on cosine and sine.
        attention_scaling: f32,
    },
    /// Windowed and full layers differ.
    ByKind {
        /// Radians per position and pair of the full layers.
        full_attention_inv_freq: Vec<f32>,
        /// Their factor.
        full_attention_attention_scaling: f32,
        /// Radians per position and pair of the windowed layers.
        sliding_attention_inv_freq: Vec<f32>,
        /// Their factor.
        sliding_attention_attention_scaling: f32,
    },
}

impl GoldenRope {
    /// Frequencies and factor of every table.
    pub fn tables(&self) -> Vec<(&[f32], f32)> {
        match self {
            Self::Same { inv_freq, attention_scaling } => vec![(inv_freq, *attention_scaling)],
            Self::ByKind {
                full_attention_inv_freq,
                full_attention_attention_scaling,
                sliding_attention_inv_freq,
                sliding_attention_attention_scaling,
            } => vec![
                (full_attention_inv_freq, *full_attention_attention_scaling),
                (sliding_attention_inv_freq, *sliding_attention_attention_scaling),
            ],
        }
    }
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
    /// Values inside the network, for the prompt of 7.
    pub trace: Option<Trace>,
    /// Values of the prediction head, for some prompts.
    pub mtp: Option<MtpGolden>,
}

/// Values inside the network: L2 norms per token, and vectors of the last token.
#[derive(Debug, Deserialize)]
pub struct Trace {
    /// After the embedding.
    pub embed_norm: Vec<f32>,
    /// After each layer.
    pub layers: Vec<LayerTrace>,
}

/// The residual stream after a layer.
#[derive(Debug, Deserialize)]
pub struct LayerTrace {
    /// L2 norm per token.
    pub out_norm: Vec<f32>,
    /// The last token's vector.
    pub out_last_token: Vec<f32>,
}

/// Values of the prediction head at positions `0..n - 1` of a prompt of `n`.
#[derive(Debug, Deserialize)]
pub struct MtpGolden {
    /// Best token at every position.
    pub argmax_all: Vec<u32>,
    /// Logits of the last position.
    pub last_logits: Vec<f32>,
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
