//! Architecture `qwen2`: Qwen 2 and 2.5, with biases on q, k and v.

use super::decoder::Family;

pub(super) const FAMILY: Family =
    Family { arch: "qwen2", paired_rope: false, qk_norm: false, sliding_window: false, frequency_divisors: false };
