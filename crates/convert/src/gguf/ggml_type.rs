//! The tensor types of GGUF: number, name, values per block, bytes per block.
//!
//! Facts from the published GGUF type table (`ggml_type`); types that are only named here are
//! reported by name when a file uses them.

/// A tensor type that can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GgmlType {
    /// IEEE binary32.
    F32,
    /// IEEE binary16.
    F16,
    /// bfloat16.
    Bf16,
    /// 4 bit, one scale per 32.
    Q4_0,
    /// 4 bit, scale and minimum per 32.
    Q4_1,
    /// 5 bit, one scale per 32.
    Q5_0,
    /// 5 bit, scale and minimum per 32.
    Q5_1,
    /// 8 bit, one scale per 32.
    Q8_0,
    /// 2 bit super-block of 256.
    Q2K,
    /// 3 bit super-block of 256.
    Q3K,
    /// 4 bit super-block of 256.
    Q4K,
    /// 5 bit super-block of 256.
    Q5K,
    /// 6 bit super-block of 256.
    Q6K,
    /// 8 bit super-block of 256 with an f32 scale.
    Q8K,
    /// 4 bit with a non-linear codebook, one scale per 32.
    Iq4Nl,
    /// 4 bit with a non-linear codebook, super-block of 256.
    Iq4Xs,
    /// Ternary, five values per byte, super-block of 256.
    Tq1_0,
    /// Ternary, four values per byte, super-block of 256.
    Tq2_0,
    /// 4 bit floating point (E2M1) with a power-of-two scale per 32.
    Mxfp4,
    /// One sign bit, one scale per 128.
    Q1_0,
}

impl GgmlType {
    /// Every readable type.
    pub const ALL: [Self; 20] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Q8K,
        Self::Iq4Nl,
        Self::Iq4Xs,
        Self::Tq1_0,
        Self::Tq2_0,
        Self::Mxfp4,
        Self::Q1_0,
    ];

    /// The type with this number, if it can be read.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| t.facts().0 == id)
    }

    /// The number of the type in a file.
    pub fn id(self) -> u32 {
        self.facts().0
    }

    /// The type's public name.
    pub fn name(self) -> &'static str {
        self.facts().1
    }

    /// Values per block.
    pub fn block_len(self) -> usize {
        self.facts().2
    }

    /// Bytes per block.
    pub fn block_bytes(self) -> usize {
        self.facts().3
    }

    fn facts(self) -> (u32, &'static str, usize, usize) {
        match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q2K => (10, "Q2_K", 256, 84),
            Self::Q3K => (11, "Q3_K", 256, 110),
            Self::Q4K => (12, "Q4_K", 256, 144),
            Self::Q5K => (13, "Q5_K", 256, 176),
            Self::Q6K => (14, "Q6_K", 256, 210),
            Self::Q8K => (15, "Q8_K", 256, 292),
            Self::Iq4Nl => (20, "IQ4_NL", 32, 18),
            Self::Iq4Xs => (23, "IQ4_XS", 256, 136),
            Self::Bf16 => (30, "BF16", 1, 2),
            Self::Tq1_0 => (34, "TQ1_0", 256, 54),
            Self::Tq2_0 => (35, "TQ2_0", 256, 66),
            Self::Mxfp4 => (39, "MXFP4", 32, 17),
            Self::Q1_0 => (41, "Q1_0", 128, 18),
        }
    }
}

/// The public name of a type number, readable or not; the number itself when it has none.
pub fn type_name(id: u32) -> String {
    if let Some(known) = GgmlType::from_id(id) {
        return known.name().to_owned();
    }
    let name = match id {
        9 => "Q8_1",
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        21 => "IQ3_S",
        22 => "IQ2_S",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        40 => "NVFP4",
        42 => "Q2_0",
        other => return format!("number {other}"),
    };
    name.to_owned()
}
