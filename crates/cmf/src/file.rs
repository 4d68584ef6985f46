//! A model on disk or in memory, ready to be read.

use crate::directory::{TensorInfo, check_names};
use crate::envelope::Section;
use crate::part::Part;
use crate::source::Source;
use crate::{
    CmfError, CmfWriter, Header, MaskCatalogue, Sections, SparseIndex, TensorPlan, WriteOptions, WriteSummary,
    blake3_hex, shards,
};
use std::path::Path;

/// An open model: a single file or all shards of a model.
///
/// Everything that the format promises was checked at open (docs/cmf-format.md §13), except
/// hashes and digests: see [`CmfFile::verify`].
pub struct CmfFile {
    first: Part,
    others: Vec<Part>,
    tensors: Vec<TensorInfo>,
    /// Positions in `tensors`, sorted by name.
    by_name: Vec<usize>,
}

impl std::fmt::Debug for CmfFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CmfFile")
            .field("arch", &self.first.header.arch.arch_name)
            .field("parts", &(1 + self.others.len()))
            .field("tensors", &self.tensors.len())
            .finish_non_exhaustive()
    }
}

impl CmfFile {
    /// Maps a file. Only the envelope, header, directory, masks and the inner tables of
    /// `vbit`, `vbit_ro`, `q1s` (and the whole payload of `q1t`) are read, so that large
    /// files open in milliseconds. A shard is opened as a file of its own.
    ///
    /// While the file is mapped it must not be shortened: the operating system ends a
    /// process (SIGBUS) that touches a page behind the end. [`CmfFile::check_length`] finds
    /// such a change before the bytes are touched, as far as that is possible;
    /// [`CmfFile::open_owned`] is safe whatever happens to the file. Replacing the file by
    /// renaming another one over it (as [`CmfWriter`] does) is harmless on Unix.
    ///
    /// # Errors
    /// The variant of the broken rule, docs/cmf-format.md §13.
    pub fn open(path: &Path) -> Result<Self, CmfError> {
        Self::from_source(Source::map(path)?)
    }

    /// Reads a whole file into memory; otherwise as [`CmfFile::open`]. Payloads are aligned
    /// as in a mapped file.
    ///
    /// # Errors
    /// As [`CmfFile::open`].
    pub fn open_owned(path: &Path) -> Result<Self, CmfError> {
        Self::from_source(Source::read(path)?)
    }

    /// Opens a file that is in memory already.
    ///
    /// # Errors
    /// As [`CmfFile::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, CmfError> {
        Self::from_source(Source::from_bytes(bytes)?)
    }

    /// Opens all shards of a model, given the path of any of them; a file without shard
    /// coordinates is opened as by [`CmfFile::open`]. Header, masks, vocabulary and skills
    /// are those of the first shard; directories are joined in the order of the shards.
    ///
    /// # Errors
    /// As [`CmfFile::open`], and the rules of docs/cmf-format.md §12.
    pub fn open_sharded(path: &Path) -> Result<Self, CmfError> {
        Self::from_parts(shards::open(path, &Source::map)?)
    }

    /// [`CmfFile::open_sharded`], with all shards read into memory.
    ///
    /// # Errors
    /// As [`CmfFile::open_sharded`].
    pub fn open_sharded_owned(path: &Path) -> Result<Self, CmfError> {
        Self::from_parts(shards::open(path, &Source::read)?)
    }

    fn from_source(source: Source) -> Result<Self, CmfError> {
        let (first, tensors) = Part::open(source, 0)?;
        Self::from_parts((first, Vec::new(), tensors))
    }

    fn from_parts((first, others, tensors): (Part, Vec<Part>, Vec<TensorInfo>)) -> Result<Self, CmfError> {
        // Each directory was checked alone; together the names must be unique, too.
        if !others.is_empty() {
            check_names(&tensors)?;
        }
        let mut by_name: Vec<usize> = (0..tensors.len()).collect();
        by_name.sort_by_key(|&i| tensors.get(i).map(|t| t.name.as_str()));
        Ok(Self { first, others, tensors, by_name })
    }

    /// The header (of the first shard).
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.first.header
    }

    /// All tensors, in the order of the file, shard after shard.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Position of the tensor with this name.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<usize> {
        let name_of = |i: usize| self.tensors.get(i).map_or("", |t| t.name.as_str());
        self.by_name.binary_search_by(|&i| name_of(i).cmp(name)).ok().and_then(|at| self.by_name.get(at).copied())
    }

    /// Position of the tensor that stands for `name` while a skill is active:
    /// `skill.{id}.{name}` if it exists, else `name` (docs/cmf-format.md §12).
    #[must_use]
    pub fn find_with_skill(&self, name: &str, skill: Option<&str>) -> Option<usize> {
        skill.and_then(|id| self.find(&format!("skill.{id}.{name}"))).or_else(|| self.find(name))
    }

    /// Payload of the tensor at a position. Starts at a multiple of 64 in memory.
    ///
    /// # Errors
    /// [`CmfError::NoSuchTensor`].
    pub fn data(&self, index: usize) -> Result<&[u8], CmfError> {
        let missing = || CmfError::NoSuchTensor(index);
        let tensor = self.tensors.get(index).ok_or_else(missing)?;
        self.part(tensor.part).ok_or_else(missing)?.payload(tensor)
    }

    fn part(&self, number: usize) -> Option<&Part> {
        match number.checked_sub(1) {
            None => Some(&self.first),
            Some(other) => self.others.get(other),
        }
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = &Part> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Number of files: 1, or the number of shards.
    #[must_use]
    pub fn part_count(&self) -> usize {
        1 + self.others.len()
    }

    /// Bytes of `tokenizer.json`.
    #[must_use]
    pub fn vocab(&self) -> Option<&[u8]> {
        self.section_bytes(Section::Vocab)
    }

    /// The masks.
    #[must_use]
    pub fn masks(&self) -> Option<&MaskCatalogue> {
        self.first.masks.as_ref()
    }

    /// Whether the file has masks.
    #[must_use]
    pub fn has_masks(&self) -> bool {
        self.masks().is_some_and(|m| !m.masks.is_empty())
    }

    /// Whether the file has a mask for this task.
    #[must_use]
    pub fn has_mask(&self, task_id: u32) -> bool {
        self.masks().is_some_and(|m| m.by_task(task_id).is_some())
    }

    /// The sparse index.
    #[must_use]
    pub fn sparse_index(&self) -> Option<&SparseIndex> {
        self.first.index.as_ref()
    }

    /// Feature bits of the envelope (of the first shard).
    #[must_use]
    pub fn features(&self) -> u32 {
        self.first.envelope.features
    }

    /// The bytes of a section as they are in the (first) file; `None` when it is absent.
    #[must_use]
    pub fn section_bytes(&self, section: Section) -> Option<&[u8]> {
        self.first.section(section)
    }

    /// The whole (first) file.
    #[must_use]
    pub fn raw_bytes(&self) -> &[u8] {
        self.first.source.bytes()
    }

    /// Length of all files together, in bytes.
    #[must_use]
    pub fn file_len(&self) -> u64 {
        self.parts().map(|p| p.source.bytes().len() as u64).sum()
    }

    /// BLAKE3 of the header JSON as 64 hex digits. In a file with digests it identifies the
    /// content, because the header holds the digests of everything else.
    #[must_use]
    pub fn header_digest(&self) -> String {
        blake3_hex(self.section_bytes(Section::Header).unwrap_or_default())
    }

    /// Whether a mapped file still has the length it had at open. Cheap (one `fstat` per
    /// file). A file that passes can still be shortened afterwards.
    ///
    /// # Errors
    /// [`CmfError::LengthChanged`].
    pub fn check_length(&self) -> Result<(), CmfError> {
        self.parts().try_for_each(|p| p.source.check_length())
    }

    /// Asks the system to read mapped files ahead. Returns at once.
    pub fn prefetch(&self) {
        self.parts().for_each(|p| p.source.prefetch());
    }

    /// What a writer must plan to write the same tensors again.
    #[must_use]
    pub fn plan(&self) -> Vec<TensorPlan> {
        self.tensors
            .iter()
            .map(|t| TensorPlan { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() })
            .collect()
    }

    /// The optional sections, for a writer.
    #[must_use]
    pub fn sections(&self) -> Sections {
        Sections { masks: self.masks().cloned(), vocab: self.vocab().map(<[u8]>::to_vec) }
    }

    /// Writes the same tensors and sections under another header. With this file's own
    /// header and the same choice of digests, a file of ours or of v0.4.0 comes out byte for byte.
    ///
    /// # Errors
    /// As [`CmfWriter`].
    pub fn write_to(&self, path: &Path, header: Header, options: WriteOptions) -> Result<WriteSummary, CmfError> {
        let mut writer = CmfWriter::create(path, header, self.plan(), self.sections(), options)?;
        for index in 0..self.tensors.len() {
            writer.write_tensor(self.data(index)?)?;
        }
        writer.finish()
    }
}
