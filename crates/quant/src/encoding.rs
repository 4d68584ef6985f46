//! Names of the encoders and the common entry to them.

use cortiq_cmf::Dtype;

use crate::common::{GROUP, check_range, element_count};
use crate::error::QuantError;
use crate::fit::Fit;
use crate::q1t_encode::Q1tOptions;
use crate::{float, q1, q1s, q1t_encode, q4_block, q4_tiled, q8_2f, q8_row, vbit};

/// An encoder with its options. Several encoders may write the same dtype.
#[derive(Debug, Clone, PartialEq)]
pub enum Encoding {
    /// Plain f32.
    F32,
    /// f16 with the rounding of docs/cmf-format.md §6.
    F16,
    /// bf16, round to nearest even.
    Bf16,
    /// 8 bits, one scale per row (§7.2).
    Q8Row,
    /// 8 bits, one scale per row and one per column (§7.3).
    Q8_2f,
    /// 4 bits, groups of 32 over the flattened matrix, scales apart (§7.4).
    Q4Block,
    /// 4 bits, groups of 32, scale and codes together (§7.5).
    Q4Tiled,
    /// 3 to 8 bits by row with a row-offset table (§7.7, dtype `vbit_ro`).
    Vbit {
        /// Target mean width in thousandths of a bit, 3000 to 8000.
        mean_milli_bits: u32,
    },
    /// 3 to 8 bits by row without the offset table (§7.6, dtype `vbit`).
    VbitPlain {
        /// Target mean width in thousandths of a bit, 3000 to 8000.
        mean_milli_bits: u32,
    },
    /// Signs with one scale per group (§7.8, `q1`).
    Q1,
    /// Signs chosen with a running error carry (§7.8, `q1p`); dtype `q1`.
    Q1Carry,
    /// `q1p` plus the largest weights kept as f16 (§7.9).
    Q1s {
        /// Fraction of weights kept, clamped to 0..=0.25; the usual value is 0.01.
        keep: f32,
    },
    /// Ternary codes plus f16 outliers by row (§7.10).
    Q1t(Q1tOptions),
}

impl Encoding {
    /// Fraction of outliers that `q1s` keeps unless told otherwise (§7.9).
    pub const Q1S_DEFAULT_KEEP: f32 = 0.01;
    /// Mean width of `vbit` unless told otherwise (§7.6).
    pub const VBIT_DEFAULT_MEAN_BITS: f64 = 4.25;

    /// The dtype that this encoder writes.
    pub fn dtype(&self) -> Dtype {
        match self {
            Self::F32 => Dtype::F32,
            Self::F16 => Dtype::F16,
            Self::Bf16 => Dtype::Bf16,
            Self::Q8Row => Dtype::Q8Row,
            Self::Q8_2f => Dtype::Q8_2f,
            Self::Q4Block => Dtype::Q4Block,
            Self::Q4Tiled => Dtype::Q4Tiled,
            Self::Vbit { .. } => Dtype::VbitRo,
            Self::VbitPlain { .. } => Dtype::Vbit,
            Self::Q1 | Self::Q1Carry => Dtype::Q1,
            Self::Q1s { .. } => Dtype::Q1s,
            Self::Q1t(_) => Dtype::Q1t,
        }
    }

    /// The plainest encoder of a dtype, with default options.
    pub fn for_dtype(dtype: Dtype) -> Self {
        let mean_milli_bits = milli_bits(Self::VBIT_DEFAULT_MEAN_BITS);
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
            Dtype::Q8Row => Self::Q8Row,
            Dtype::Q8_2f => Self::Q8_2f,
            Dtype::Q4Block => Self::Q4Block,
            Dtype::Q4Tiled => Self::Q4Tiled,
            Dtype::VbitRo => Self::Vbit { mean_milli_bits },
            Dtype::Vbit => Self::VbitPlain { mean_milli_bits },
            Dtype::Q1 => Self::Q1,
            Dtype::Q1s => Self::Q1s { keep: Self::Q1S_DEFAULT_KEEP },
            Dtype::Q1t => Self::Q1t(Q1tOptions::default()),
        }
    }

    /// Reads a name as the converter's `--quant` option spells it (§16), or a dtype name.
    ///
    /// `mean_bits` is the target width of `vbit`, clamped to 3..=8 and kept in thousandths. `None` for unknown names.
    pub fn parse(name: &str, mean_bits: f64) -> Option<Self> {
        let mean_milli_bits = milli_bits(mean_bits);
        Some(match name {
            "f32" | "fp32" => Self::F32,
            "f16" | "fp16" => Self::F16,
            "bf16" => Self::Bf16,
            "q8" | "q8_row" | "q8row" => Self::Q8Row,
            "q8_2f" | "q82f" | "q8f" => Self::Q8_2f,
            "q4" | "q4_block" | "q4block" => Self::Q4Block,
            "q4t" | "q4_tiled" => Self::Q4Tiled,
            "vbit" | "v_bit" | "vbit_ro" => Self::Vbit { mean_milli_bits },
            "vbit_plain" => Self::VbitPlain { mean_milli_bits },
            "q1" => Self::Q1,
            "q1p" | "q1_ptq" => Self::Q1Carry,
            "q1s" | "q1_mask" => Self::Q1s { keep: Self::Q1S_DEFAULT_KEEP },
            "q1t" => Self::Q1t(Q1tOptions::default()),
            _ => return None,
        })
    }

    /// Whether a matrix of this shape can be written; a converter takes another encoding where not (§16).
    pub fn accepts(&self, rows: usize, cols: usize) -> bool {
        self.check_shape(rows, cols).is_ok()
    }

    /// Number of elements, or why the encoding refuses the shape.
    pub(crate) fn check_shape(&self, rows: usize, cols: usize) -> Result<usize, QuantError> {
        let dtype = self.dtype().name();
        let n = element_count(dtype, rows, cols)?;
        let refuse = |needs| Err(QuantError::Shape { dtype, rows, cols, needs });
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::Q8Row | Self::Q8_2f | Self::Q4Block => {}
            _ if !cols.is_multiple_of(GROUP) => return refuse("columns must be a multiple of 32"),
            Self::Q1s { .. } if u32::try_from(n - 1).is_err() => {
                return refuse("flat indices must fit 32 bits");
            }
            Self::Q1t(_) if cols > q1t_encode::MAX_COLS => return refuse("at most 65536 columns"),
            _ => {}
        }
        Ok(n)
    }

    /// Largest magnitude whose scale (or outlier) stays finite in f16; `None` for plain floats.
    fn limit(&self) -> Option<f32> {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => None,
            Self::Q8Row => Some(q8_row::MAX_ABS),
            Self::Q8_2f => Some(q8_2f::MAX_ABS),
            Self::Q4Block | Self::Q4Tiled => Some(q4_block::MAX_ABS),
            Self::Vbit { .. } | Self::VbitPlain { .. } => Some(vbit::MAX_ABS),
            Self::Q1 | Self::Q1Carry | Self::Q1s { .. } => Some(q1::MAX_ABS),
            Self::Q1t(_) => Some(q1t_encode::MAX_ABS),
        }
    }
}

/// Mean width in thousandths of a bit, clamped to the range of the format (§7.6).
fn milli_bits(mean_bits: f64) -> u32 {
    // `as` saturates and maps NaN to 0; the clamp after it keeps the value in range.
    ((mean_bits * 1000.0).round() as u32).clamp(3000, 8000)
}

/// Encodes a row-major `[rows, cols]` matrix (docs/cmf-format.md §7).
///
/// Runs on all threads of the current rayon pool; the bytes do not depend on how many there are.
///
/// # Errors
/// [`QuantError::InputLength`] unless `values.len() == rows * cols`; [`QuantError::Empty`], [`QuantError::Shape`] or
/// [`QuantError::TooLarge`] for a shape that the encoding cannot hold; for quantised encodings
/// [`QuantError::NotFinite`] and [`QuantError::OutOfRange`] with the first offending index;
/// [`QuantError::Option`] for unusable options.
pub fn encode(enc: &Encoding, values: &[f32], rows: usize, cols: usize) -> Result<Vec<u8>, QuantError> {
    encode_fitted(enc, Fit::Peak, values, rows, cols)
}

/// As [`encode`], with a choice of how groups of q4_block, q4_tiled and vbit get their scales; other encodings have
/// only one way.
///
/// # Errors
/// As [`encode`].
pub fn encode_fitted(
    enc: &Encoding,
    fit: Fit,
    values: &[f32],
    rows: usize,
    cols: usize,
) -> Result<Vec<u8>, QuantError> {
    let n = enc.check_shape(rows, cols)?;
    if values.len() != n {
        return Err(QuantError::InputLength { got: values.len(), rows, cols });
    }
    if let Some(limit) = enc.limit() {
        check_range(enc.dtype().name(), values, limit)?;
    }
    match enc {
        Encoding::F32 => float::encode_f32(values),
        Encoding::F16 => float::encode_f16(values),
        Encoding::Bf16 => float::encode_bf16(values),
        Encoding::Q8Row => q8_row::encode(values, rows, cols),
        Encoding::Q8_2f => q8_2f::encode(values, rows, cols),
        Encoding::Q4Block => q4_block::encode(values, fit),
        Encoding::Q4Tiled => q4_tiled::encode(values, fit),
        Encoding::Vbit { mean_milli_bits } => vbit::encode(values, rows, cols, *mean_milli_bits, true, fit),
        Encoding::VbitPlain { mean_milli_bits } => vbit::encode(values, rows, cols, *mean_milli_bits, false, fit),
        Encoding::Q1 => q1::encode(values, rows, cols, false),
        Encoding::Q1Carry => q1::encode(values, rows, cols, true),
        Encoding::Q1s { keep } => q1s::encode(values, rows, cols, *keep),
        Encoding::Q1t(options) => q1t_encode::encode(values, rows, cols, options),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_converter() {
        let vbit = Encoding::Vbit { mean_milli_bits: 4250 };
        let cases: &[(&[&str], Encoding)] = &[
            (&["q8", "q8_row", "q8row"], Encoding::Q8Row),
            (&["q8_2f", "q82f", "q8f"], Encoding::Q8_2f),
            (&["q4", "q4_block", "q4block"], Encoding::Q4Block),
            (&["q4t", "q4_tiled"], Encoding::Q4Tiled),
            (&["f16", "fp16"], Encoding::F16),
            (&["vbit", "v_bit"], vbit),
            (&["q1"], Encoding::Q1),
            (&["q1p", "q1_ptq"], Encoding::Q1Carry),
            (&["q1s", "q1_mask"], Encoding::Q1s { keep: 0.01 }),
        ];
        for (names, want) in cases {
            for name in *names {
                assert_eq!(Encoding::parse(name, 4.25).as_ref(), Some(want), "{name}");
            }
        }
        assert_eq!(Encoding::parse("q5", 4.25), None);
        for (bits, milli) in [(1.0, 3000), (5.1234, 5123), (99.0, 8000), (f64::NAN, 3000)] {
            assert_eq!(Encoding::parse("vbit", bits), Some(Encoding::Vbit { mean_milli_bits: milli }));
        }
    }

    #[test]
    fn shapes() {
        for dtype in Dtype::ALL {
            let enc = Encoding::for_dtype(dtype);
            assert_eq!(enc.dtype(), dtype);
            assert!(enc.accepts(3, 64), "{}", dtype.name());
            assert!(!enc.accepts(0, 64), "{}", dtype.name());
            assert!(!enc.accepts(3, 0), "{}", dtype.name());
            assert!(!enc.accepts(usize::MAX, 64), "{}", dtype.name());
        }
        for name in ["q8", "q8_2f", "q4", "f16"] {
            assert_eq!(Encoding::parse(name, 4.0).map(|e| e.accepts(2, 33)), Some(true));
        }
        for name in ["q4t", "vbit", "vbit_plain", "q1", "q1p", "q1s", "q1t"] {
            assert_eq!(Encoding::parse(name, 4.0).map(|e| e.accepts(2, 33)), Some(false));
        }
        assert!(!Encoding::for_dtype(Dtype::Q1t).accepts(1, 65536 + 32));
        assert!(Encoding::for_dtype(Dtype::Q1t).accepts(1, 65536));
        assert!(!Encoding::for_dtype(Dtype::Q1s).accepts((1 << 27) + 1, 32));
    }
}
