//! The storage types of docs/cmf-format.md §5 and the payload lengths that follow from a shape.

use crate::CmfError;

/// How a tensor's payload is encoded. The discriminant is the id byte of the directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Dtype {
    /// 32-bit floats.
    F32 = 0,
    /// IEEE binary16.
    F16 = 1,
    /// The upper half of a 32-bit float.
    Bf16 = 2,
    /// 8-bit integers, one f16 scale per row.
    Q8Row = 3,
    /// 4-bit integers in groups of 32, scales behind all nibbles.
    Q4Block = 4,
    /// 3 to 8 bits, the width chosen per row; no row offsets.
    Vbit = 8,
    /// 8-bit integers, an f16 scale per row and one per column.
    Q8_2f = 9,
    /// As [`Dtype::Vbit`], with row offsets.
    VbitRo = 10,
    /// 4-bit integers in tiles of 18 bytes.
    Q4Tiled = 11,
    /// Signs in tiles of 6 bytes.
    Q1 = 12,
    /// [`Dtype::Q1`] and a list of exact values.
    Q1s = 13,
    /// Ternary tiles of 9 bytes and a sparse overlay of exact values.
    Q1t = 14,
}

/// Elements per group of every grouped dtype.
pub const GROUP: u64 = 32;

impl Dtype {
    /// All dtypes that can be read and written, by ascending id.
    pub const ALL: [Self; 12] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q8Row,
        Self::Q4Block,
        Self::Vbit,
        Self::Q8_2f,
        Self::VbitRo,
        Self::Q4Tiled,
        Self::Q1,
        Self::Q1s,
        Self::Q1t,
    ];

    /// The dtype of a directory id byte.
    ///
    /// # Errors
    /// [`CmfError::ReservedDtype`] for 5, 6 and 7, [`CmfError::UnknownDtype`] for other
    /// ids that are not in the table.
    pub fn from_id(id: u8) -> Result<Self, CmfError> {
        let reserved = |name| Err(CmfError::ReservedDtype { id, name });
        match id {
            5 => reserved("mix8_4"),
            6 => reserved("u8"),
            7 => reserved("q4_col"),
            _ => Self::ALL.into_iter().find(|d| d.id() == id).ok_or(CmfError::UnknownDtype(id)),
        }
    }

    /// The id byte of the directory.
    #[must_use]
    pub fn id(self) -> u8 {
        self as u8
    }

    /// The name used in documentation, messages and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8Row => "q8_row",
            Self::Q4Block => "q4_block",
            Self::Vbit => "vbit",
            Self::Q8_2f => "q8_2f",
            Self::VbitRo => "vbit_ro",
            Self::Q4Tiled => "q4_tiled",
            Self::Q1 => "q1",
            Self::Q1s => "q1s",
            Self::Q1t => "q1t",
        }
    }

    /// The dtype with this [`Dtype::name`].
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|d| d.name() == name)
    }

    /// Whether the dtype is only defined for matrices `[out, in]`.
    #[must_use]
    pub fn needs_matrix(self) -> bool {
        matches!(self, Self::Q8Row | Self::Q8_2f | Self::Vbit | Self::VbitRo | Self::Q1t)
    }

    /// Whether a row of `cols` columns can be stored: `vbit`, `vbit_ro` and `q1t` need a
    /// positive multiple of 32, `q1t` at most 65,536.
    #[must_use]
    pub fn accepts_columns(self, cols: u32) -> bool {
        let grouped = cols > 0 && u64::from(cols).is_multiple_of(GROUP);
        match self {
            Self::Vbit | Self::VbitRo => grouped,
            Self::Q1t => grouped && cols <= 65_536,
            _ => true,
        }
    }

    /// Exact payload length in bytes where the shape alone fixes it (docs/cmf-format.md §5);
    /// `None` for `vbit`, `vbit_ro`, `q1s` and `q1t`, whose length depends on the content.
    ///
    /// # Errors
    /// [`CmfError::WrongRank`], [`CmfError::WrongColumns`] and [`CmfError::ShapeOverflow`],
    /// with an empty tensor name (the directory and the writer fill it in).
    pub fn fixed_len(self, shape: &[u32]) -> Result<Option<u64>, CmfError> {
        self.fixed_len_of("", shape)
    }

    /// [`Dtype::fixed_len`] with the tensor's name in the errors.
    pub(crate) fn fixed_len_of(self, name: &str, shape: &[u32]) -> Result<Option<u64>, CmfError> {
        let overflow = || CmfError::ShapeOverflow { name: name.into() };
        let n = element_count(shape).ok_or_else(overflow)?;
        if self.needs_matrix() {
            let &[_, cols] = shape else {
                return Err(CmfError::WrongRank { name: name.into(), dtype: self.name(), ndim: shape.len() });
            };
            if !self.accepts_columns(cols) {
                return Err(CmfError::WrongColumns { name: name.into(), dtype: self.name(), cols });
            }
        }
        let dim = |i: usize| u64::from(shape.get(i).copied().unwrap_or(0));
        let groups = n.div_ceil(GROUP);
        let len = match self {
            Self::F32 => n.checked_mul(4),
            Self::F16 | Self::Bf16 => n.checked_mul(2),
            Self::Q8Row => n.checked_add(2 * dim(0)),
            Self::Q8_2f => n.checked_add(2 * (dim(0) + dim(1))),
            Self::Q4Block | Self::Q4Tiled => groups.checked_mul(18),
            Self::Q1 => groups.checked_mul(6),
            Self::Vbit | Self::VbitRo | Self::Q1s | Self::Q1t => return Ok(None),
        };
        len.map(Some).ok_or_else(overflow)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Number of elements of a shape (1 for no dimensions), `None` beyond 64 bits.
#[must_use]
pub fn element_count(shape: &[u32]) -> Option<u64> {
    shape.iter().try_fold(1u64, |n, &d| n.checked_mul(u64::from(d)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_names_round_trip() {
        for id in 0..=u8::MAX {
            match Dtype::from_id(id) {
                Ok(d) => {
                    assert_eq!(d.id(), id);
                    assert_eq!(Dtype::from_name(d.name()), Some(d));
                    assert!(Dtype::ALL.contains(&d));
                }
                Err(CmfError::ReservedDtype { .. }) => assert!((5..=7).contains(&id)),
                Err(CmfError::UnknownDtype(found)) => {
                    assert_eq!(found, id);
                    assert!(id >= 15);
                }
                Err(e) => panic!("{id}: {e}"),
            }
        }
    }

    #[test]
    fn fixed_lengths_follow_the_table() {
        let cases: &[(Dtype, &[u32], Option<u64>)] = &[
            (Dtype::F32, &[], Some(4)),
            (Dtype::F32, &[2, 3], Some(24)),
            (Dtype::F16, &[3], Some(6)),
            (Dtype::Bf16, &[0, 7], Some(0)),
            (Dtype::Q8Row, &[2, 8], Some(20)),
            (Dtype::Q8_2f, &[2, 4], Some(20)),
            (Dtype::Q8_2f, &[0, 4], Some(8)),
            (Dtype::Q4Block, &[34], Some(36)),
            (Dtype::Q4Tiled, &[2, 2, 8], Some(18)),
            (Dtype::Q1, &[32], Some(6)),
            (Dtype::Q1, &[33], Some(12)),
            (Dtype::Vbit, &[2, 32], None),
            (Dtype::VbitRo, &[2, 32], None),
            (Dtype::Q1s, &[7], None),
            (Dtype::Q1t, &[2, 65_536], None),
        ];
        for (dtype, shape, expected) in cases {
            assert_eq!(dtype.fixed_len(shape).unwrap(), *expected, "{dtype} {shape:?}");
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let max = u32::MAX;
        assert!(matches!(Dtype::F32.fixed_len(&[max, max, max]), Err(CmfError::ShapeOverflow { .. })));
        // 2^64 - 2^33 + 1 elements fit, four times as many bytes do not.
        assert!(matches!(Dtype::F32.fixed_len(&[max, max]), Err(CmfError::ShapeOverflow { .. })));
        assert!(matches!(Dtype::Q8Row.fixed_len(&[8]), Err(CmfError::WrongRank { ndim: 1, .. })));
        for (dtype, cols) in [(Dtype::Vbit, 33), (Dtype::VbitRo, 0), (Dtype::Q1t, 16), (Dtype::Q1t, 65_568)] {
            assert!(matches!(dtype.fixed_len(&[1, cols]), Err(CmfError::WrongColumns { .. })), "{dtype} {cols}");
        }
    }
}
