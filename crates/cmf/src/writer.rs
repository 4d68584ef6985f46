//! Writing a file in one pass: sizes of payloads need not be known in advance.
//!
//! Header and directory come before the payloads, but contain their hashes. Their lengths
//! follow from names and shapes alone (digests have a fixed length), so room is left for
//! them and they are written last.

use crate::directory::{self, MAX_DIMS, TENSOR_ALIGN, TensorInfo};
use crate::envelope::{DATA_ALIGN, ENVELOPE_LEN, Envelope, Span, needed_features};
use crate::header::MAX_HEADER_LEN;
use crate::payload::Payload;
use crate::{
    CmfError, Digests, Dtype, Header, MaskCatalogue, MaskShape, SectionHashes, SparseIndex, blake3_hex, hash64, masks,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::io::{BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

const BUFFER: usize = 1 << 20;

/// One tensor that will be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorPlan {
    /// Name.
    pub name: String,
    /// Encoding of the payload.
    pub dtype: Dtype,
    /// Dimensions, matrices as `[out, in]`.
    pub shape: Vec<u32>,
}

/// How to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WriteOptions {
    /// Record BLAKE3 digests in the header (§8.1).
    pub digests: bool,
    /// Replace an existing file.
    pub overwrite: bool,
}

/// The optional sections. Empty ones are not written. The sparse index follows from the masks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sections {
    /// Masks.
    pub masks: Option<MaskCatalogue>,
    /// Bytes of `tokenizer.json`.
    pub vocab: Option<Vec<u8>>,
}

/// What was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriteSummary {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// As [`crate::CmfFile::header_digest`].
    pub header_digest: String,
}

/// Writes one file: [`CmfWriter::create`], then [`CmfWriter::write_tensor`] for each planned
/// tensor in order, then [`CmfWriter::finish`]. Until then the bytes are in
/// `<path>.partial`, which is removed when the writer is dropped unfinished.
#[derive(Debug)]
pub struct CmfWriter {
    output: Output,
    header: Header,
    digests: bool,
    tensors: Vec<TensorInfo>,
    tensor_digests: Vec<String>,
    written: usize,
    header_len: u64,
    data_off: u64,
    /// Bytes of the blob so far.
    data_len: u64,
    masks: Vec<u8>,
    vocab: Vec<u8>,
    index: Vec<u8>,
}

impl CmfWriter {
    /// Checks the plan and opens `<path>.partial`.
    ///
    /// `header.section_hashes` is replaced when there is a section to hash, and kept
    /// otherwise; `header.digests` is replaced or removed according to the options.
    ///
    /// # Errors
    /// Everything that would make the file unreadable, [`CmfError::OutputExists`],
    /// [`CmfError::OutputBusy`] and system errors.
    pub fn create(
        path: &Path,
        mut header: Header,
        plan: Vec<TensorPlan>,
        sections: Sections,
        options: WriteOptions,
    ) -> Result<Self, CmfError> {
        let tensors = check_plan(plan)?;
        header.check()?;
        let (masks, index) = encode_masks(&header, sections.masks)?;
        let vocab = sections.vocab.unwrap_or_default();
        if !(masks.is_empty() && vocab.is_empty() && index.is_empty()) {
            let hash = |bytes: &Vec<u8>| (!bytes.is_empty()).then(|| format!("{:016x}", hash64(bytes)));
            header.section_hashes =
                Some(SectionHashes { masks: hash(&masks), vocab: hash(&vocab), index: hash(&index) });
        }
        header.digests = options.digests.then(|| {
            let digest = |bytes: &Vec<u8>| (!bytes.is_empty()).then(|| blake3_hex(bytes));
            let unknown = "0".repeat(64);
            Digests {
                algorithm: "blake3".into(),
                directory: unknown.clone(),
                tensors: vec![unknown; tensors.len()],
                masks: digest(&masks),
                vocab: digest(&vocab),
                index: digest(&index),
            }
        });
        let header_len = check_json(&header)?;
        let names = tensors.iter().map(|t| t.name.as_str());
        let front = ENVELOPE_LEN + header_len + directory::encoded_len(names);
        let data_off = front.next_multiple_of(DATA_ALIGN);
        let output = Output::create(path, options.overwrite, data_off)?;
        Ok(Self {
            output,
            header,
            digests: options.digests,
            tensors,
            tensor_digests: Vec::new(),
            written: 0,
            header_len,
            data_off,
            data_len: 0,
            masks,
            vocab,
            index,
        })
    }

    /// Writes the payload of the next planned tensor. After a [`CmfError::PayloadLength`] or
    /// another complaint about the payload nothing has been written and the call may be
    /// repeated; after a system error the writer is useless.
    ///
    /// # Errors
    /// [`CmfError::TooManyTensors`], the rules on payloads, system errors.
    pub fn write_tensor(&mut self, payload: &[u8]) -> Result<(), CmfError> {
        let planned = self.tensors.len();
        let Some(tensor) = self.tensors.get_mut(self.written) else {
            return Err(CmfError::TooManyTensors { planned });
        };
        let nbytes = payload.len() as u64;
        directory::check_len(&tensor.name, tensor.dtype, &tensor.shape, nbytes)?;
        Payload { name: &tensor.name, dtype: tensor.dtype, shape: &tensor.shape, bytes: payload }.check()?;
        let offset = self.data_len.next_multiple_of(TENSOR_ALIGN);
        let fill = [0u8; TENSOR_ALIGN as usize];
        let fill = fill.get(..(offset - self.data_len) as usize).unwrap_or_default();
        self.output.write(fill)?;
        self.output.write(payload)?;
        tensor.offset = offset;
        tensor.nbytes = nbytes;
        tensor.hash = hash64(payload);
        if self.digests {
            self.tensor_digests.push(blake3_hex(payload));
        }
        self.data_len = offset.saturating_add(nbytes);
        self.written += 1;
        Ok(())
    }

    /// Writes the sections, the directory and the header, and moves the file to its place.
    ///
    /// # Errors
    /// [`CmfError::MissingTensors`], [`CmfError::OutputExists`] when the path was taken in
    /// the meantime, system errors. Nothing is left behind.
    pub fn finish(mut self) -> Result<WriteSummary, CmfError> {
        if self.written < self.tensors.len() {
            return Err(CmfError::MissingTensors { written: self.written, planned: self.tensors.len() });
        }
        let mut end = self.data_off.saturating_add(self.data_len);
        let mut section = |bytes: &[u8]| -> Result<Span, CmfError> {
            if bytes.is_empty() {
                return Ok(Span::default());
            }
            self.output.write(bytes)?;
            let span = Span { offset: end, len: bytes.len() as u64 };
            end += span.len;
            Ok(span)
        };
        let (masks, vocab, index) = (section(&self.masks)?, section(&self.vocab)?, section(&self.index)?);
        let directory = directory::encode(&self.tensors);
        if let Some(digests) = &mut self.header.digests {
            digests.directory = blake3_hex(&directory);
            digests.tensors = std::mem::take(&mut self.tensor_digests);
        }
        let header = self.header.to_json()?;
        if header.len() as u64 != self.header_len {
            return Err(CmfError::HeaderJson("its length changed".into()));
        }
        let envelope = Envelope {
            features: needed_features(
                self.tensors.iter().map(|t| t.dtype),
                masks.len > 0,
                !self.header.extensions.is_empty(),
            ),
            header: Span { offset: ENVELOPE_LEN, len: self.header_len },
            directory: Span { offset: ENVELOPE_LEN + self.header_len, len: directory.len() as u64 },
            data: Span { offset: self.data_off, len: self.data_len },
            masks,
            vocab,
            index,
            header_hash: hash64(&header),
            dir_hash: hash64(&directory),
        };
        self.output.finish(&[&envelope.to_bytes(), &header, &directory], end)?;
        Ok(WriteSummary { bytes: end, header_digest: blake3_hex(&header) })
    }
}

/// The rules on names and shapes; the directory with everything else still unknown.
fn check_plan(plan: Vec<TensorPlan>) -> Result<Vec<TensorInfo>, CmfError> {
    let mut seen = BTreeSet::new();
    let mut pool = 0u64;
    for (index, tensor) in plan.iter().enumerate() {
        let len = tensor.name.len();
        pool = pool.saturating_add(len as u64);
        if len == 0 {
            return Err(CmfError::EmptyName { index });
        }
        // A record has 16 bits for the length and 32 for the place of a name.
        if len > usize::from(u16::MAX) || pool > u64::from(u32::MAX) {
            return Err(CmfError::NameTooLong { index, len });
        }
        let ndim = tensor.shape.len();
        if ndim > MAX_DIMS {
            return Err(CmfError::TooManyDims { index, ndim });
        }
        tensor.dtype.fixed_len_of(&tensor.name, &tensor.shape)?;
        if !seen.insert(tensor.name.as_str()) {
            return Err(CmfError::DuplicateName(tensor.name.clone()));
        }
    }
    let info = |t: TensorPlan| TensorInfo {
        name: t.name,
        dtype: t.dtype,
        shape: t.shape,
        offset: 0,
        nbytes: 0,
        hash: 0,
        part: 0,
    };
    Ok(plan.into_iter().map(info).collect())
}

/// Masks section and sparse index, empty without masks.
fn encode_masks(header: &Header, catalogue: Option<MaskCatalogue>) -> Result<(Vec<u8>, Vec<u8>), CmfError> {
    let Some(catalogue) = catalogue.filter(|c| !c.masks.is_empty()) else {
        return Ok((Vec::new(), Vec::new()));
    };
    let shape = MaskShape::from(&header.arch);
    let section = masks::encode(&catalogue, shape)?;
    let index = SparseIndex::from_masks(&catalogue, shape)?;
    Ok((section, index.encode()))
}

/// Length of the header as JSON, after making sure that it reads back as it is: JSON has
/// no spelling for NaN and infinities.
fn check_json(header: &Header) -> Result<u64, CmfError> {
    let json = header.to_json()?;
    let len = json.len() as u64;
    if len > MAX_HEADER_LEN {
        return Err(CmfError::HeaderTooLarge { len, max: MAX_HEADER_LEN });
    }
    if Header::from_json(&json)? != *header {
        return Err(CmfError::HeaderJson("a value cannot be expressed in JSON".into()));
    }
    Ok(len)
}

/// The partial file. Removed on drop unless it was moved to its place.
#[derive(Debug)]
struct Output {
    file: Option<BufWriter<File>>,
    path: PathBuf,
    partial: PathBuf,
    overwrite: bool,
}

impl Output {
    /// Opens the partial file, positioned at `start`.
    fn create(path: &Path, overwrite: bool, start: u64) -> Result<Self, CmfError> {
        let mut name = match path.file_name() {
            Some(name) => name.to_owned(),
            None => return Err(CmfError::NotARegularFile(path.to_path_buf())),
        };
        name.push(".partial");
        let partial = path.with_file_name(name);
        check_target(path, overwrite)?;
        check_partial(&partial)?;
        let io = |e: std::io::Error| match path.parent() {
            Some(folder) if e.kind() == std::io::ErrorKind::NotFound => CmfError::NoSuchFolder(folder.to_path_buf()),
            _ => CmfError::io(&partial, e),
        };
        // Not truncated before the lock is held: the bytes may be someone else's.
        let file = File::options().write(true).create(true).truncate(false).open(&partial).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(std::fs::TryLockError::WouldBlock) => {
                return Err(CmfError::OutputBusy(path.to_path_buf()));
            }
            // Some file systems have no locks; then two writers are not told apart.
            Err(std::fs::TryLockError::Error(_)) => {}
        }
        // The writer that held the lock may have moved the file to its place after it was opened here.
        if !still_there(&file, &partial) {
            return Err(CmfError::OutputBusy(path.to_path_buf()));
        }
        let mut output =
            Self { file: Some(BufWriter::with_capacity(BUFFER, file)), path: path.to_path_buf(), partial, overwrite };
        output.with_file(|file| {
            file.get_ref().set_len(0)?;
            file.seek(SeekFrom::Start(start)).map(|_| ())
        })?;
        Ok(output)
    }

    /// Runs an operation; after an error the file is given up.
    fn with_file(
        &mut self,
        operation: impl FnOnce(&mut BufWriter<File>) -> std::io::Result<()>,
    ) -> Result<(), CmfError> {
        let failed = || std::io::Error::other("an earlier write failed");
        let Some(mut file) = self.file.take() else {
            return Err(CmfError::io(&self.partial, failed()));
        };
        operation(&mut file).map_err(|e| CmfError::io(&self.partial, e))?;
        self.file = Some(file);
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), CmfError> {
        self.with_file(|file| file.write_all(bytes))
    }

    /// Writes the front of the file and gives it its name. `len` is the final length.
    fn finish(&mut self, front: &[&[u8]], len: u64) -> Result<(), CmfError> {
        self.with_file(|file| {
            file.seek(SeekFrom::Start(0))?;
            for bytes in front {
                file.write_all(bytes)?;
            }
            file.flush()?;
            // Without tensors and sections nothing was written behind the zero fill.
            file.get_ref().set_len(len)?;
            file.get_ref().sync_all()
        })?;
        check_target(&self.path, self.overwrite)?;
        if !cfg!(unix) {
            // Some systems do not rename open files; elsewhere the lock is held until the file has its name.
            self.file = None;
        }
        std::fs::rename(&self.partial, &self.path).map_err(|e| {
            let error = CmfError::io(&self.path, e);
            self.remove();
            error
        })?;
        self.partial = PathBuf::new();
        self.file = None;
        Ok(())
    }

    fn remove(&mut self) {
        self.file = None;
        if !self.partial.as_os_str().is_empty() {
            // Nothing sensible can be done when this fails.
            let _ = std::fs::remove_file(&self.partial);
            self.partial = PathBuf::new();
        }
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Whether `path` still names the open `file`.
#[cfg(unix)]
fn still_there(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |found: std::io::Result<std::fs::Metadata>| found.ok().map(|m| (m.dev(), m.ino()));
    identity(file.metadata()) == identity(std::fs::symlink_metadata(path))
}

/// Whether `path` still names the open `file`: an open file keeps its name on other systems.
#[cfg(not(unix))]
fn still_there(_file: &File, _path: &Path) -> bool {
    true
}

/// Whether a file may be put at `path`.
fn check_target(path: &Path, overwrite: bool) -> Result<(), CmfError> {
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(CmfError::io(path, e)),
        Ok(_) if !overwrite => Err(CmfError::OutputExists(path.to_path_buf())),
        // A link is replaced itself; a device or a pipe must never be.
        Ok(metadata) if metadata.is_file() || metadata.is_symlink() => Ok(()),
        Ok(_) => Err(CmfError::NotARegularFile(path.to_path_buf())),
    }
}

/// The partial file may be left from an earlier run, but must be a file: opening a pipe would wait.
fn check_partial(partial: &Path) -> Result<(), CmfError> {
    match std::fs::symlink_metadata(partial) {
        Ok(metadata) if !metadata.is_file() => Err(CmfError::NotARegularFile(partial.to_path_buf())),
        _ => Ok(()),
    }
}
