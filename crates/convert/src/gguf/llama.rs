//! Architecture `llama`: Llama 1 to 3, Mistral, Mixtral, SmolLM 2 and others of that build.
//!
//! The converters of this architecture reorder the rows of q and k inside each head, because its
//! RoPE rotates neighbouring pairs; that is undone here. Frequency divisors of Llama 3.1 and later
//! are in the tensor `rope_freqs.weight`. With experts it is Mixtral, whose router always norms.

use cortiq_cmf::NormStyle;

use super::GgufError;
use super::block::{self, Parts};
use super::decoder::{Family, Model, Source};
use super::hyper::HeadKeys;
use super::moe;

pub(super) const FAMILY: Family =
    Family { arch: "llama", heads: HeadKeys::Uniform, reads: &["expert_count", "expert_used_count"], build };

fn build(source: &Source<'_>) -> Result<Model, GgufError> {
    let mut plan = source.plan("output_norm.weight", NormStyle::Qwen);
    let scaling = source.rope_scaling_or_divisors(&mut plan)?;
    let moe = moe::read(source, &moe::Defaults { norm: true, sigmoid: false, ffn_width: true })?;
    if moe.is_none() && source.keys.count("expert_count")? > 0 {
        return Err(GgufError::MissingTensor { name: format!("blk.0.{}", moe::ROUTER) });
    }
    let name = if moe.is_some() { "mixtral" } else { "llama" };
    let mut arch = source.arch(name, source.ffn()?, scaling);
    source.keys.refuse_pattern()?;
    arch.sliding_window = source.keys.window()?;
    block::layers(source, &mut plan, &Parts { paired_rope: true, ..Parts::default() }, moe.as_ref())?;
    arch.moe = moe;
    Ok(Model { arch, plan, notes: Vec::new() })
}
