//! One file of a model, opened and checked; a sharded model has several.

use crate::directory::{self, TensorInfo};
use crate::envelope::{Envelope, Section, needed_features};
use crate::header::MAX_HEADER_LEN;
use crate::payload::Payload;
use crate::source::Source;
use crate::{CmfError, Digests, Header, MaskCatalogue, MaskShape, SparseIndex, masks};

pub(crate) struct Part {
    pub(crate) source: Source,
    pub(crate) envelope: Envelope,
    pub(crate) header: Header,
    pub(crate) masks: Option<MaskCatalogue>,
    pub(crate) index: Option<SparseIndex>,
}

impl Part {
    /// Checks a whole file, in the order of §13, and returns its directory.
    pub(crate) fn open(source: Source, number: usize) -> Result<(Self, Vec<TensorInfo>), CmfError> {
        let bytes = source.bytes();
        let envelope = Envelope::parse(bytes)?;
        let section = |s| section_of(bytes, &envelope, s);

        if envelope.header.len > MAX_HEADER_LEN {
            return Err(CmfError::HeaderTooLarge { len: envelope.header.len, max: MAX_HEADER_LEN });
        }
        let header = Header::from_json(section(Section::Header).unwrap_or_default())?;
        header.check()?;

        let directory = section(Section::Directory).unwrap_or_default();
        let tensors = directory::parse(directory, envelope.data.len, number)?;
        let blob = section(Section::Data).unwrap_or_default();
        for tensor in &tensors {
            Payload { name: &tensor.name, dtype: tensor.dtype, shape: &tensor.shape, bytes: payload_of(blob, tensor)? }
                .check()?;
        }

        let shape = MaskShape::from(&header.arch);
        let masks = section(Section::Masks).map(|bytes| masks::parse(bytes, shape)).transpose()?;
        let index = section(Section::Index).map(|bytes| SparseIndex::parse(bytes, shape)).transpose()?;
        envelope.check_features(needed_features(
            tensors.iter().map(|t| t.dtype),
            masks.is_some(),
            !header.extensions.is_empty(),
        ))?;
        if let Some(digests) = &header.digests {
            check_digests(digests, &envelope, tensors.len())?;
        }
        let part = Self { envelope, header, masks, index, source };
        Ok((part, tensors))
    }

    /// Bytes of a section, `None` when it is absent.
    pub(crate) fn section(&self, section: Section) -> Option<&[u8]> {
        section_of(self.source.bytes(), &self.envelope, section)
    }

    pub(crate) fn payload(&self, tensor: &TensorInfo) -> Result<&[u8], CmfError> {
        payload_of(self.section(Section::Data).unwrap_or_default(), tensor)
    }
}

fn section_of<'a>(bytes: &'a [u8], envelope: &Envelope, section: Section) -> Option<&'a [u8]> {
    let span = envelope.span(section);
    if span.len == 0 {
        return None;
    }
    let start = usize::try_from(span.offset).ok()?;
    let end = usize::try_from(span.offset.checked_add(span.len)?).ok()?;
    bytes.get(start..end)
}

fn payload_of<'a>(blob: &'a [u8], tensor: &TensorInfo) -> Result<&'a [u8], CmfError> {
    let range = || {
        let start = usize::try_from(tensor.offset).ok()?;
        let end = usize::try_from(tensor.offset.checked_add(tensor.nbytes)?).ok()?;
        blob.get(start..end)
    };
    range().ok_or_else(|| CmfError::TensorOutOfBounds {
        name: tensor.name.clone(),
        offset: tensor.offset,
        nbytes: tensor.nbytes,
        data_len: blob.len() as u64,
    })
}

/// The form of `digests`; whether they are right is for `verify` to say.
fn check_digests(digests: &Digests, envelope: &Envelope, tensors: usize) -> Result<(), CmfError> {
    if digests.algorithm != "blake3" {
        return Err(CmfError::DigestAlgorithm(digests.algorithm.clone()));
    }
    if digests.tensors.len() != tensors {
        return Err(CmfError::DigestCount { tensors, found: digests.tensors.len() });
    }
    let optional =
        [(Section::Masks, &digests.masks), (Section::Vocab, &digests.vocab), (Section::Index, &digests.index)];
    for (section, digest) in optional {
        if digest.is_some() != (envelope.span(section).len > 0) {
            return Err(CmfError::DigestSection(section.name()));
        }
        if let Some(digest) = digest {
            check_digest(digest, || section.name().into())?;
        }
    }
    check_digest(&digests.directory, || "directory".into())?;
    for (i, digest) in digests.tensors.iter().enumerate() {
        check_digest(digest, || format!("tensor {i}"))?;
    }
    Ok(())
}

fn check_digest(digest: &str, what: impl Fn() -> String) -> Result<(), CmfError> {
    let hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    if digest.len() == 64 && digest.bytes().all(hex) { Ok(()) } else { Err(CmfError::DigestFormat(what())) }
}
