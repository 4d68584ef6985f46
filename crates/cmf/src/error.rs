//! The one error type of the crate: one variant per rule of docs/cmf-format.md §13.

use std::path::PathBuf;

/// What can be wrong with a CMF file, or with a request to write one.
///
/// Every rule of the format has its own variant, so that a caller (and a test) can tell
/// them apart without reading the message. Names that come from a file are printed
/// escaped.
#[derive(Debug, thiserror::Error)]
pub enum CmfError {
    // ---- the file itself -------------------------------------------------------------
    /// The path does not exist.
    #[error("{}: no such file", .0.display())]
    FileNotFound(PathBuf),
    /// The folder of an output does not exist.
    #[error("{}: no such folder", .0.display())]
    NoSuchFolder(PathBuf),
    /// The path is a directory, a pipe, a device: anything but a regular file.
    #[error("{}: not a regular file", .0.display())]
    NotARegularFile(PathBuf),
    /// The operating system refused an operation.
    #[error("{}: {source}", .path.display())]
    Io {
        /// File the operation was about.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A mapped file no longer has the length it had when it was opened.
    #[error("{}: the file had {expected} bytes when it was opened and has {found} now", .path.display())]
    LengthChanged {
        /// File that changed.
        path: PathBuf,
        /// Length at open, in bytes.
        expected: u64,
        /// Length now, in bytes.
        found: u64,
    },

    // ---- envelope, §2 ----------------------------------------------------------------
    /// Fewer bytes than the envelope needs.
    #[error("the file has {len} bytes, a CMF file has at least 128")]
    FileTooShort {
        /// Length of the file in bytes.
        len: u64,
    },
    /// The first four bytes are not `43 4D 46 01`.
    #[error("not a CMF file (wrong magic)")]
    InvalidMagic,
    /// The envelope's version is not 2.
    #[error("CMF version {0} is not supported (only version 2 is)")]
    UnsupportedVersion(u32),
    /// Feature bits that this reader does not know; only the unknown bits are listed.
    #[error("unknown required features {0:#x}")]
    UnsupportedFeature(u32),
    /// The content needs a feature bit that the envelope does not set.
    #[error("the content needs feature bit {0}, which the envelope does not set")]
    MissingFeature(&'static str),
    /// The envelope sets a feature bit without the content that belongs to it.
    #[error("feature bit {0} is set, but the file has nothing of that kind")]
    SuperfluousFeature(&'static str),
    /// The header or the directory has length 0.
    #[error("the {0} section is empty")]
    EmptySection(&'static str),
    /// A section does not lie inside the file.
    #[error("the {section} section (offset {offset}, {len} bytes) is not inside the file of {file_len} bytes")]
    SectionOutOfBounds {
        /// Which section.
        section: &'static str,
        /// Offset from the start of the file.
        offset: u64,
        /// Length in bytes.
        len: u64,
        /// Length of the file in bytes.
        file_len: u64,
    },
    /// The weight blob does not start at a multiple of 4096.
    #[error("the data section starts at {offset}, which is not a multiple of 4096")]
    DataMisaligned {
        /// Offset from the start of the file.
        offset: u64,
    },
    /// Two sections share bytes (the envelope counts as one).
    #[error("the {first} and {second} sections overlap")]
    SectionsOverlap {
        /// The one that starts earlier.
        first: &'static str,
        /// The one that starts later.
        second: &'static str,
    },

    // ---- header, §3 ------------------------------------------------------------------
    /// The header JSON is longer than [`crate::MAX_HEADER_LEN`].
    #[error("the header has {len} bytes, more than the {max} allowed")]
    HeaderTooLarge {
        /// Its length in bytes.
        len: u64,
        /// The cap.
        max: u64,
    },
    /// The header is not UTF-8 JSON of the right form.
    #[error("header: {0}")]
    HeaderJson(String),
    /// The header's `format` is not `cmf`.
    #[error("header.format is {0:?}, not \"cmf\"")]
    WrongFormatName(String),
    /// The header's `version` is not 2.
    #[error("header.version is {0}, not 2")]
    WrongHeaderVersion(u32),
    /// `layer_types` does not have one entry per layer.
    #[error("arch.layer_types has {found} entries for {num_layers} layers")]
    LayerTypesLength {
        /// `arch.num_layers`.
        num_layers: usize,
        /// Entries found.
        found: usize,
    },
    /// `rope_layers` does not have one entry per layer.
    #[error("arch.rope_layers has {found} entries for {num_layers} layers")]
    RopeLayersLength {
        /// Layers of the model.
        num_layers: usize,
        /// Entries found.
        found: usize,
    },
    /// `n_group` does not divide the experts.
    #[error("arch.moe.num_experts {num_experts} cannot be split into {n_group} groups")]
    ExpertGroups {
        /// Experts per layer.
        num_experts: usize,
        /// Groups.
        n_group: usize,
    },
    /// `sliding_layers` does not have one entry per layer.
    #[error("arch.sliding_layers has {found} entries for {num_layers} layers")]
    SlidingLayersLength {
        /// `arch.num_layers`.
        num_layers: usize,
        /// Entries found.
        found: usize,
    },
    /// A size that others are divided by, or that must exist, is 0.
    #[error("{0} must be greater than 0")]
    ZeroSize(&'static str),
    /// A size is beyond what any model has.
    #[error("{key} is {value}, more than the {max} allowed")]
    SizeTooLarge {
        /// Key in the header.
        key: &'static str,
        /// Its value.
        value: u64,
        /// The cap.
        max: u64,
    },
    /// The number of query heads is not a multiple of the number of key/value heads.
    #[error("{heads} attention heads cannot be shared among {kv_heads} ({key})")]
    HeadsNotDivisible {
        /// Key that holds the number of key/value heads.
        key: &'static str,
        /// Query heads.
        heads: usize,
        /// Key/value heads.
        kv_heads: usize,
    },
    /// A real number that must be finite and greater than 0 is not.
    #[error("{key} is {value}, it must be finite and greater than 0")]
    NotPositive {
        /// Key in the header.
        key: &'static str,
        /// Its value.
        value: f64,
    },
    /// A real number is outside its range.
    #[error("{key} is {value}, it must be in {range}")]
    OutOfRange {
        /// Key in the header.
        key: &'static str,
        /// Its value.
        value: f64,
        /// The range in words.
        range: &'static str,
    },
    /// More experts are selected per token than exist.
    #[error("moe.top_k is {top_k} with {num_experts} experts")]
    TopKTooLarge {
        /// Experts per token.
        top_k: usize,
        /// Experts that exist.
        num_experts: usize,
    },
    /// The two factor lists of `longrope` differ in length, or are empty.
    #[error("rope_scaling has {short} short factors and {long} long factors")]
    LongRopeFactors {
        /// Length of `short_factor`.
        short: usize,
        /// Length of `long_factor`.
        long: usize,
    },
    /// `header.extensions` lists a name that this reader does not know.
    #[error("the file needs the extension {0:?}, which is not known here")]
    UnknownExtension(String),
    /// The header uses an extension that `header.extensions` does not list.
    #[error("the header uses the extension {0:?} without listing it in `extensions`")]
    ExtensionNotListed(&'static str),
    /// `shard` does not satisfy `1 <= no <= count <= 99999`.
    #[error("shard {no} of {count} is not a valid coordinate")]
    ShardCoordinates {
        /// 1-based number.
        no: usize,
        /// Number of shards.
        count: usize,
    },
    /// `digests.algorithm` is not `blake3`.
    #[error("digests.algorithm is {0:?}, not \"blake3\"")]
    DigestAlgorithm(String),
    /// A digest is not 64 lower-case hex digits.
    #[error("the digest of {0} is not 64 lower-case hex digits")]
    DigestFormat(String),
    /// `digests.tensors` does not have one entry per tensor.
    #[error("digests.tensors has {found} entries for {tensors} tensors")]
    DigestCount {
        /// Tensors in the directory.
        tensors: usize,
        /// Entries found.
        found: usize,
    },
    /// A section has no digest although the file has digests, or the other way round.
    #[error("the {0} section and its digest do not go together")]
    DigestSection(&'static str),

    // ---- directory, §4 ---------------------------------------------------------------
    /// The directory is shorter than its own fixed part.
    #[error("the tensor directory has {len} bytes, it needs at least 16")]
    DirectoryTooShort {
        /// Its length in bytes.
        len: u64,
    },
    /// The records do not fit the directory.
    #[error("{count} tensor records do not fit a directory of {len} bytes")]
    DirectoryRecords {
        /// Records announced.
        count: u64,
        /// Length of the directory in bytes.
        len: u64,
    },
    /// The name pool does not lie between the records and the end of the directory.
    #[error("the name pool starts at {pool_off} in a directory of {len} bytes")]
    NamePool {
        /// Offset announced.
        pool_off: u64,
        /// Length of the directory in bytes.
        len: u64,
    },
    /// The names together are longer than the pool, so some share bytes.
    #[error("the tensor names need {names} bytes, the name pool has {pool}")]
    SharedNames {
        /// Sum of the name lengths up to the offending record.
        names: u64,
        /// Length of the pool.
        pool: u64,
    },
    /// A record has more than six dimensions.
    #[error("tensor {index} has {ndim} dimensions, more than 6")]
    TooManyDims {
        /// Position in the directory or in the writer's plan.
        index: usize,
        /// Dimensions.
        ndim: usize,
    },
    /// A name does not lie inside the pool.
    #[error("the name of tensor {index} is not inside the name pool")]
    NameOutOfBounds {
        /// Position in the directory.
        index: usize,
    },
    /// A name is not UTF-8.
    #[error("the name of tensor {index} is not UTF-8")]
    NameNotUtf8 {
        /// Position in the directory.
        index: usize,
    },
    /// A name is empty.
    #[error("tensor {index} has an empty name")]
    EmptyName {
        /// Position in the directory or in the writer's plan.
        index: usize,
    },
    /// Two tensors have the same name.
    #[error("two tensors are called {0:?}")]
    DuplicateName(String),
    /// A dtype id that no version of the format defines.
    #[error("unknown dtype id {0}")]
    UnknownDtype(u8),
    /// A dtype id that is reserved and has no decoder (5 mix8_4, 6 u8, 7 q4_col).
    #[error("dtype {name} (id {id}) is reserved and cannot be read")]
    ReservedDtype {
        /// The id.
        id: u8,
        /// The name it is reserved for.
        name: &'static str,
    },
    /// A dtype was used with a number of dimensions it does not allow.
    #[error("tensor {name:?}: {dtype} needs 2 dimensions, not {ndim}")]
    WrongRank {
        /// Tensor.
        name: String,
        /// Its dtype.
        dtype: &'static str,
        /// Dimensions found.
        ndim: usize,
    },
    /// The number of columns does not suit the dtype.
    #[error("tensor {name:?}: {dtype} cannot hold rows of {cols} columns")]
    WrongColumns {
        /// Tensor.
        name: String,
        /// Its dtype.
        dtype: &'static str,
        /// Columns found.
        cols: u32,
    },
    /// The number of elements or the payload length does not fit 64 bits.
    #[error("tensor {name:?}: the shape is too large")]
    ShapeOverflow {
        /// Tensor.
        name: String,
    },
    /// A payload does not start at a multiple of 64 inside the blob.
    #[error("tensor {name:?} starts at {offset}, which is not a multiple of 64")]
    TensorMisaligned {
        /// Tensor.
        name: String,
        /// Offset inside the data section.
        offset: u64,
    },
    /// A payload does not lie inside the data section.
    #[error("tensor {name:?} (offset {offset}, {nbytes} bytes) is not inside the data section of {data_len} bytes")]
    TensorOutOfBounds {
        /// Tensor.
        name: String,
        /// Offset inside the data section.
        offset: u64,
        /// Payload length.
        nbytes: u64,
        /// Length of the data section.
        data_len: u64,
    },
    /// Two payloads share bytes.
    #[error("tensors {first:?} and {second:?} overlap")]
    TensorsOverlap {
        /// The one that starts earlier.
        first: String,
        /// The one that starts later.
        second: String,
    },
    /// A payload does not have the length that dtype and shape demand.
    #[error("tensor {name:?}: the {dtype} payload has {found} bytes, {expected} are needed")]
    PayloadLength {
        /// Tensor.
        name: String,
        /// Its dtype.
        dtype: &'static str,
        /// Length needed.
        expected: u64,
        /// Length found.
        found: u64,
    },
    /// A payload is too short for the fixed part of its dtype.
    #[error("tensor {name:?}: the {dtype} payload has {found} bytes, its fixed part alone needs {needed}")]
    PayloadTruncated {
        /// Tensor.
        name: String,
        /// Its dtype.
        dtype: &'static str,
        /// Bytes of the fixed part.
        needed: u64,
        /// Length found.
        found: u64,
    },

    // ---- payloads with an inner structure, §7 ----------------------------------------
    /// A vbit row has a width other than 3, 4, 5, 6 or 8.
    #[error("tensor {name:?}: row {row} has a width of {bits} bits")]
    VbitWidth {
        /// Tensor.
        name: String,
        /// Row.
        row: u64,
        /// Width found.
        bits: u8,
    },
    /// The first row offset of a vbit_ro tensor is not 0.
    #[error("tensor {name:?}: the first row offset is {found}, not 0")]
    VbitFirstOffset {
        /// Tensor.
        name: String,
        /// Offset found.
        found: u32,
    },
    /// Two neighbouring row offsets of a vbit_ro tensor do not span exactly one row.
    #[error("tensor {name:?}: the offsets of row {row} do not span its {expected} bytes")]
    VbitRowSpan {
        /// Tensor.
        name: String,
        /// Row.
        row: u64,
        /// Bytes of the row.
        expected: u64,
    },
    /// A q1s entry points behind the last element.
    #[error("tensor {name:?}: entry {entry} has index {index}, the tensor has {elements} elements")]
    Q1sIndexRange {
        /// Tensor.
        name: String,
        /// Entry.
        entry: u64,
        /// Flat index found.
        index: u32,
        /// Elements of the tensor.
        elements: u64,
    },
    /// The q1s entries are not strictly ascending.
    #[error("tensor {name:?}: entry {entry} is not behind the entry before it")]
    Q1sIndexOrder {
        /// Tensor.
        name: String,
        /// Entry.
        entry: u64,
    },
    /// The first row pointer of a q1t tensor is not 0.
    #[error("tensor {name:?}: row_ptr[0] is {found}, not 0")]
    Q1tFirstRowPtr {
        /// Tensor.
        name: String,
        /// Value found.
        found: u32,
    },
    /// The row pointers of a q1t tensor descend.
    #[error("tensor {name:?}: row_ptr descends at row {row}")]
    Q1tRowPtrOrder {
        /// Tensor.
        name: String,
        /// Row.
        row: u64,
    },
    /// A q1t entry is in a column that does not exist.
    #[error("tensor {name:?}: row {row} has an entry in column {col} of {cols}")]
    Q1tColumnRange {
        /// Tensor.
        name: String,
        /// Row.
        row: u64,
        /// Column found.
        col: u16,
        /// Columns of the tensor.
        cols: u32,
    },
    /// The entries of a q1t row are not strictly ascending.
    #[error("tensor {name:?}: the columns of row {row} are not strictly ascending")]
    Q1tColumnOrder {
        /// Tensor.
        name: String,
        /// Row.
        row: u64,
    },
    /// A q1t code byte is beyond 242 (five base-3 digits).
    #[error("tensor {name:?}: tile {tile} has the code byte {found}, more than 242")]
    Q1tCode {
        /// Tensor.
        name: String,
        /// Tile.
        tile: u64,
        /// Byte found.
        found: u8,
    },
    /// The last code byte of a q1t tile is beyond 8 (two base-3 digits).
    #[error("tensor {name:?}: tile {tile} has the last code byte {found}, more than 8")]
    Q1tLastCode {
        /// Tensor.
        name: String,
        /// Tile.
        tile: u64,
        /// Byte found.
        found: u8,
    },
    /// The base code under a q1t entry is not 0.
    #[error("tensor {name:?}: the base code under the entry at ({row}, {col}) is not 0")]
    Q1tBaseCode {
        /// Tensor.
        name: String,
        /// Row.
        row: u64,
        /// Column.
        col: u16,
    },

    // ---- masks and sparse index, §9 and §11 ------------------------------------------
    /// The masks section is shorter than its fixed part.
    #[error("the masks section has {len} bytes, it needs at least 8")]
    MasksTooShort {
        /// Its length in bytes.
        len: u64,
    },
    /// The description of the masks does not lie inside the section.
    #[error("the masks description of {meta_len} bytes is not inside the section of {len} bytes")]
    MasksMetaOutOfBounds {
        /// Length announced.
        meta_len: u32,
        /// Length of the section.
        len: u64,
    },
    /// The description of the masks is not JSON of the right form.
    #[error("masks: {0}")]
    MasksJson(String),
    /// The number of masks in the section's head and in its description differ.
    #[error("the masks section announces {announced} masks and describes {described}")]
    MaskCount {
        /// `n_masks`.
        announced: u32,
        /// Entries of the description.
        described: usize,
    },
    /// A mask's bits do not have the size that the architecture demands.
    #[error("mask {name:?} has {found} bytes, the architecture needs {expected}")]
    MaskLength {
        /// Mask.
        name: String,
        /// Bytes needed.
        expected: u64,
        /// Bytes found.
        found: u64,
    },
    /// A mask's bits do not lie inside the section.
    #[error("the bits of mask {name:?} are not inside the masks section")]
    MaskOutOfBounds {
        /// Mask.
        name: String,
    },
    /// The bits of two masks, or of a mask and the description, share bytes.
    #[error("the bits of mask {name:?} overlap what lies before them")]
    MasksOverlap {
        /// Mask.
        name: String,
    },
    /// A bit behind the last neuron, head or layer is set.
    #[error("mask {name:?} sets bits behind its last {what}")]
    MaskTailBits {
        /// Mask.
        name: String,
        /// Kind of row: neuron, head or layer.
        what: &'static str,
    },
    /// A mask's `sparsity` or quality value is not a finite number.
    #[error("mask {name:?}: {key} is not a finite number")]
    MaskNumber {
        /// Mask.
        name: String,
        /// Key.
        key: &'static str,
    },
    /// The sparse index is shorter than its fixed part.
    #[error("the sparse index has {len} bytes, it needs at least 8")]
    IndexTooShort {
        /// Its length in bytes.
        len: u64,
    },
    /// The sparse index announces more entries than can fit.
    #[error("{entries} entries do not fit a sparse index of {len} bytes")]
    IndexCount {
        /// Entries announced.
        entries: u32,
        /// Length of the section.
        len: u64,
    },
    /// An entry of the sparse index does not lie inside the section.
    #[error("entry {entry} of the sparse index is not inside the section")]
    IndexEntryOutOfBounds {
        /// Entry.
        entry: u32,
    },
    /// An entry of the sparse index names a layer, group or head that does not exist.
    #[error("entry {entry} of the sparse index names {what} {value}, which does not exist")]
    IndexRange {
        /// Entry.
        entry: u32,
        /// Kind: layer, group or head.
        what: &'static str,
        /// Number found.
        value: u32,
    },
    /// The model is too large for the 16-bit groups or 8-bit heads of a sparse index.
    #[error("the sparse index cannot number {count} {what}, at most {max} fit")]
    IndexLimit {
        /// Kind: groups or heads.
        what: &'static str,
        /// How many there are.
        count: u64,
        /// How many fit.
        max: u64,
    },

    // ---- shards, §12 -----------------------------------------------------------------
    /// The file name does not end in the tag that the header's shard demands.
    #[error("{path:?}: the name of this shard must end in {tag}")]
    ShardName {
        /// File.
        path: PathBuf,
        /// Tag, `-00001-of-00003.cmf` for example.
        tag: String,
    },
    /// A sibling file is not the shard that its name promises.
    #[error("{path:?}: expected shard {no} of {count}")]
    ShardMismatch {
        /// File.
        path: PathBuf,
        /// Number that was expected.
        no: usize,
        /// Number of shards that was expected.
        count: usize,
    },

    // ---- requests --------------------------------------------------------------------
    /// There is no tensor with this position.
    #[error("there is no tensor number {0}")]
    NoSuchTensor(usize),
    /// The output file exists and overwriting was not asked for.
    #[error("{0:?} exists already")]
    OutputExists(PathBuf),
    /// Another writer is busy with the same output.
    #[error("{0:?} is being written by someone else")]
    OutputBusy(PathBuf),
    /// A tensor name is longer than the 65,535 bytes that a record can express.
    #[error("the name of tensor {index} has {len} bytes, more than 65535")]
    NameTooLong {
        /// Position in the plan.
        index: usize,
        /// Length in bytes.
        len: usize,
    },
    /// The writer was finished before all planned tensors were written.
    #[error("{written} of {planned} planned tensors were written")]
    MissingTensors {
        /// Tensors written.
        written: usize,
        /// Tensors planned.
        planned: usize,
    },
    /// More tensors were written than planned.
    #[error("all {planned} planned tensors have been written already")]
    TooManyTensors {
        /// Tensors planned.
        planned: usize,
    },
}

impl CmfError {
    /// Wraps a system error with the path it is about.
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        if source.kind() == std::io::ErrorKind::NotFound {
            Self::FileNotFound(path.to_path_buf())
        } else {
            Self::Io { path: path.to_path_buf(), source }
        }
    }
}
