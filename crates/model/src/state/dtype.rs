//! Storage types of keys and values.

/// How keys and values are kept (docs/behaviour.md §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvDtype {
    /// As they were computed.
    #[default]
    F32,
    /// Rounded to half precision; finite values beyond ±65504 become ±65504.
    F16,
    /// 8 bits: per block of positions one scale per channel of a key, and one scale per value row. The newest block
    /// and the one before it are kept in f32 too.
    Q8,
}

impl KvDtype {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::Q8];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Q8 => "q8",
        }
    }

    /// The type of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kv| kv.name() == name)
    }
}
