//! Qwen3.5: the hybrid decoder with dense FFNs, in text-only and in multimodal checkpoints.

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::INTERMEDIATE;
use crate::hf::family::{Family, Layout};
use crate::hf::hybrid::{self, HybridConfig};

pub(crate) const FAMILY: Family = Family {
    name: "qwen3_5",
    model_types: &["qwen3_5", "qwen3_5_text"],
    architectures: &["Qwen3_5ForCausalLM", "Qwen3_5ForConditionalGeneration"],
    read,
    rename: hybrid::rename,
};

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let intermediate_size = config.int("intermediate_size", INTERMEDIATE)?.unwrap_or(12_288);
    let hybrid = HybridConfig::read(config, intermediate_size)?;
    Ok(hybrid.layout("qwen3_5_text", None, &[]))
}
