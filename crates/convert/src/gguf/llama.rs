//! Architecture `llama`: Llama 1 to 3, Mistral, SmolLM 2 and others of that build.
//!
//! The converters of this architecture reorder the rows of q and k inside each head, because its
//! RoPE rotates neighbouring pairs; that is undone here. Frequency divisors of Llama 3.1 and later
//! are in the tensor `rope_freqs.weight`.

use super::decoder::Family;

pub(super) const FAMILY: Family =
    Family { arch: "llama", paired_rope: true, qk_norm: false, sliding_window: true, frequency_divisors: true };
