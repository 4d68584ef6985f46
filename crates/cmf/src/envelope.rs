//! The fixed 128 bytes at the start of a file, docs/cmf-format.md §2.

use crate::CmfError;

/// Length of the envelope in bytes.
pub const ENVELOPE_LEN: u64 = 128;
pub(crate) const MAGIC: [u8; 4] = *b"CMF\x01";
pub(crate) const VERSION: u32 = 2;
/// The weight blob starts at a multiple of this.
pub(crate) const DATA_ALIGN: u64 = 4096;

/// Bit 0: the file has a tensor directory. Always set.
pub const FEATURE_TENSOR_DIR: u32 = 1;
/// Bit 1: the file has a masks section.
pub const FEATURE_BINARY_MASKS: u32 = 1 << 1;
/// Bit 2: a tensor is `q8_2f` or `vbit`.
pub const FEATURE_QUANT_2F: u32 = 1 << 2;
/// Bit 16: `header.extensions` is not empty.
pub const FEATURE_EXTENSIONS: u32 = 1 << 16;
const KNOWN: u32 = FEATURE_TENSOR_DIR | FEATURE_BINARY_MASKS | FEATURE_QUANT_2F | FEATURE_EXTENSIONS;

/// The parts of a file that the envelope points to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Section {
    /// Header JSON.
    Header,
    /// Tensor directory.
    Directory,
    /// Weight blob.
    Data,
    /// Masks.
    Masks,
    /// `tokenizer.json`.
    Vocab,
    /// Sparse index.
    Index,
}

impl Section {
    /// All sections in the order of the envelope.
    pub const ALL: [Self; 6] = [Self::Header, Self::Directory, Self::Data, Self::Masks, Self::Vocab, Self::Index];

    /// Name used in messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Header => "header",
            Self::Directory => "directory",
            Self::Data => "data",
            Self::Masks => "masks",
            Self::Vocab => "vocab",
            Self::Index => "index",
        }
    }
}

/// Where a section lies in the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Span {
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Envelope {
    pub(crate) features: u32,
    pub(crate) header: Span,
    pub(crate) directory: Span,
    pub(crate) data: Span,
    pub(crate) masks: Span,
    pub(crate) vocab: Span,
    pub(crate) index: Span,
    pub(crate) header_hash: u64,
    pub(crate) dir_hash: u64,
}

/// Little-endian `u32` at `at`, `None` behind the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let raw = bytes.get(at..)?.first_chunk::<4>()?;
    Some(u32::from_le_bytes(*raw))
}

/// Little-endian `u64` at `at`, `None` behind the end.
pub(crate) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let raw = bytes.get(at..)?.first_chunk::<8>()?;
    Some(u64::from_le_bytes(*raw))
}

impl Envelope {
    /// Reads and checks the envelope of a file of `bytes.len()` bytes (rules 2 to 8 of §13).
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, CmfError> {
        let file_len = bytes.len() as u64;
        let short = || CmfError::FileTooShort { len: file_len };
        let head = bytes.first_chunk::<128>().ok_or_else(short)?;
        if head.first_chunk::<4>() != Some(&MAGIC) {
            return Err(CmfError::InvalidMagic);
        }
        let version = u32_at(head, 4).ok_or_else(short)?;
        if version != VERSION {
            return Err(CmfError::UnsupportedVersion(version));
        }
        let features = u32_at(head, 0x0C).ok_or_else(short)?;
        if features & !KNOWN != 0 {
            return Err(CmfError::UnsupportedFeature(features & !KNOWN));
        }
        let span = |at: usize| -> Result<Span, CmfError> {
            Ok(Span { offset: u64_at(head, at).ok_or_else(short)?, len: u64_at(head, at + 8).ok_or_else(short)? })
        };
        let envelope = Self {
            features,
            header: span(0x10)?,
            directory: span(0x20)?,
            data: span(0x30)?,
            masks: span(0x40)?,
            vocab: span(0x50)?,
            index: span(0x60)?,
            header_hash: u64_at(head, 0x70).ok_or_else(short)?,
            dir_hash: u64_at(head, 0x78).ok_or_else(short)?,
        };
        envelope.check(file_len)?;
        Ok(envelope)
    }

    fn check(&self, file_len: u64) -> Result<(), CmfError> {
        for section in [Section::Header, Section::Directory] {
            if self.span(section).len == 0 {
                return Err(CmfError::EmptySection(section.name()));
            }
        }
        let mut used = vec![("envelope", 0, ENVELOPE_LEN)];
        for section in Section::ALL {
            let Span { offset, len } = self.span(section);
            if len == 0 {
                continue;
            }
            let end = offset.checked_add(len).filter(|end| *end <= file_len);
            let Some(end) = end else {
                return Err(CmfError::SectionOutOfBounds { section: section.name(), offset, len, file_len });
            };
            used.push((section.name(), offset, end));
        }
        if self.data.len > 0 && !self.data.offset.is_multiple_of(DATA_ALIGN) {
            return Err(CmfError::DataMisaligned { offset: self.data.offset });
        }
        used.sort_by_key(|(_, start, _)| *start);
        for pair in used.windows(2) {
            if let [(first, _, end), (second, start, _)] = pair
                && start < end
            {
                return Err(CmfError::SectionsOverlap { first, second });
            }
        }
        Ok(())
    }

    pub(crate) fn span(&self, section: Section) -> Span {
        match section {
            Section::Header => self.header,
            Section::Directory => self.directory,
            Section::Data => self.data,
            Section::Masks => self.masks,
            Section::Vocab => self.vocab,
            Section::Index => self.index,
        }
    }

    /// Compares the feature bits with the content (§2.1). `QUANT_2F` without such a tensor
    /// is tolerated: the bit only promises that a reader knows two-factor scales, and other
    /// writers set it for more dtypes than v0.4.0 does.
    pub(crate) fn check_features(&self, needed: u32) -> Result<(), CmfError> {
        let bits = [
            (FEATURE_TENSOR_DIR, "TENSOR_DIR", false),
            (FEATURE_BINARY_MASKS, "BINARY_MASKS", true),
            (FEATURE_QUANT_2F, "QUANT_2F", false),
            (FEATURE_EXTENSIONS, "EXTENSIONS", true),
        ];
        for (bit, name, exact) in bits {
            match (needed & bit != 0, self.features & bit != 0) {
                (true, false) => return Err(CmfError::MissingFeature(name)),
                (false, true) if exact => return Err(CmfError::SuperfluousFeature(name)),
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        out.extend_from_slice(&MAGIC);
        for word in [VERSION, 0, self.features] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for section in Section::ALL {
            let Span { offset, len } = self.span(section);
            out.extend_from_slice(&offset.to_le_bytes());
            out.extend_from_slice(&len.to_le_bytes());
        }
        out.extend_from_slice(&self.header_hash.to_le_bytes());
        out.extend_from_slice(&self.dir_hash.to_le_bytes());
        out
    }
}

/// Feature bits that the content of a file needs.
pub(crate) fn needed_features(dtypes: impl IntoIterator<Item = crate::Dtype>, masks: bool, extensions: bool) -> u32 {
    use crate::Dtype;
    let mut bits = FEATURE_TENSOR_DIR;
    if masks {
        bits |= FEATURE_BINARY_MASKS;
    }
    if dtypes.into_iter().any(|d| matches!(d, Dtype::Q8_2f | Dtype::Vbit)) {
        bits |= FEATURE_QUANT_2F;
    }
    if extensions {
        bits |= FEATURE_EXTENSIONS;
    }
    bits
}
