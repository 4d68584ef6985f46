//! Phi-3, Phi-3.5 and Phi-4: q, k and v in one matrix, gate and up in another; rotation of a part of each
//! head, longrope, a window on all layers.

use cortiq_cmf::{ModelArch, RopeScaling};

use crate::ConvertError;
use crate::hf::config::Object;
use crate::hf::decoder::{self, DecoderConfig, Heads, INTERMEDIATE, Parts};
use crate::hf::family::{Family, Layout, Mapping, Piece};
use crate::hf::rope::{self, RopeKind};

pub(crate) const FAMILY: Family =
    Family { name: "phi3", model_types: &["phi3"], architectures: &["Phi3ForCausalLM"], read, rename };

/// `config.json` of the family.
struct Phi3Config {
    decoder: DecoderConfig,
    /// Part of each head that is rotated.
    partial_rotary_factor: f64,
    /// Window of all layers, in tokens.
    sliding_window: Option<usize>,
}

impl Phi3Config {
    fn read(config: &Object<'_>) -> Result<Self, ConvertError> {
        let class = serde_json::json!({"max_position_embeddings": 4096, "rms_norm_eps": 1e-5});
        let config = &config.with_defaults(&class);
        for key in ["attention_bias", "mlp_bias"] {
            if config.boolean(key)? == Some(true) {
                return Err(config.unsupported(key, true, "this family has no biases"));
            }
        }
        let heads = Heads::read(config, None)?;
        let intermediate_size = config.required_int("intermediate_size", INTERMEDIATE)?;
        let positions = decoder::max_positions(config)?;
        let (rope, part) = rope::parse_partial(config, &[RopeKind::LongRope], positions, 1.0)?;
        let pairs = rotated_pairs(config, heads.head_dim, part)?;
        if let Some(RopeScaling::LongRope { short_factor, .. }) = &rope.scaling
            && short_factor.len() != pairs
        {
            let reason = format!("has {} entries, but {pairs} pairs of each head are rotated", short_factor.len());
            return Err(config.invalid("short_factor", reason));
        }
        Ok(Self {
            decoder: DecoderConfig::read_with(config, heads, intermediate_size, rope)?,
            partial_rotary_factor: part,
            sliding_window: config.int("sliding_window", 1..=1 << 31)?,
        })
    }
}

/// Half the number of rotated dimensions of a head, docs/behaviour.md §2.4.
fn rotated_pairs(config: &Object<'_>, head_dim: usize, part: f64) -> Result<usize, ConvertError> {
    let rotated = (head_dim as f64 * part) as usize;
    if rotated < 2 || !rotated.is_multiple_of(2) {
        let reason = format!("is {part}: {rotated} of {head_dim} dimensions cannot be rotated in pairs");
        return Err(config.invalid("partial_rotary_factor", reason));
    }
    Ok(rotated / 2)
}

fn read(config: &Object<'_>) -> Result<Layout, ConvertError> {
    let Phi3Config { decoder, partial_rotary_factor, sliding_window } = Phi3Config::read(config)?;
    let mut arch = decoder.arch("phi3");
    arch.partial_rotary_factor = partial_rotary_factor as f32;
    decoder::set_sliding(&mut arch, sliding_window, vec![true; decoder.num_layers]);
    Ok(Layout { arch, tensors: decoder.tensors(&Parts::default()) })
}

/// `qkv_proj` is `[q | k | v]` by rows, `gate_up_proj` is `[gate | up]`.
fn rename(name: &str, arch: &ModelArch) -> Mapping {
    let mapping = decoder::rename(name, arch);
    let Mapping::Keep(name) = &mapping else { return mapping };
    let (q, kv) = (arch.num_attention_heads * arch.head_dim, arch.num_kv_heads * arch.head_dim);
    let (q, kv, ffn) = (q as u64, kv as u64, arch.intermediate_size as u64);
    let pieces = if let Some(stem) = name.strip_suffix("qkv_proj.weight") {
        vec![
            Piece::new(format!("{stem}q_proj.weight"), 0..q),
            Piece::new(format!("{stem}k_proj.weight"), q..q + kv),
            Piece::new(format!("{stem}v_proj.weight"), q + kv..q + 2 * kv),
        ]
    } else if let Some(stem) = name.strip_suffix("gate_up_proj.weight") {
        vec![
            Piece::new(format!("{stem}gate_proj.weight"), 0..ffn),
            Piece::new(format!("{stem}up_proj.weight"), ffn..2 * ffn),
        ]
    } else {
        return mapping;
    };
    Mapping::Split(pieces)
}
