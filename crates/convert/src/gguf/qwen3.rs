//! Architecture `qwen3`: dense Qwen 3, with norms on q and k.

use super::decoder::Family;

pub(super) const FAMILY: Family =
    Family { arch: "qwen3", paired_rope: false, qk_norm: true, sliding_window: false, frequency_divisors: false };
