//! What the tensors of a file become: a list of canonical tensors, each with the tensor it comes from,
//! which of its rows it takes and what is done to the values.

use std::ops::Range;

use super::GgufError;
use super::reader::TensorRecord;

/// A canonical tensor that may follow from the file.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    /// The tensor in the file.
    pub(super) gguf: String,
    /// Its shape, outermost first; 1s in front do not matter.
    pub(super) stored: Vec<u64>,
    /// A second tensor of the file that is needed, with its shape: see [`Values::LatentKv`].
    pub(super) also: Option<(String, Vec<u64>)>,
    /// Canonical name.
    pub(super) name: String,
    /// Canonical shape.
    pub(super) shape: Vec<u64>,
    /// The file must have it.
    pub(super) required: bool,
    pub(super) rows: Rows,
    pub(super) values: Values,
}

impl Planned {
    /// The tensor has another shape in the file.
    pub(super) fn stored(&mut self, shape: &[u64]) -> &mut Self {
        self.stored = shape.to_vec();
        self
    }

    pub(super) fn rows(&mut self, rows: Rows) -> &mut Self {
        self.rows = rows;
        self
    }

    pub(super) fn values(&mut self, values: Values) -> &mut Self {
        self.values = values;
        self
    }

    pub(super) fn optional(&mut self) -> &mut Self {
        self.required = false;
        self
    }
}

/// Which rows of a tensor are taken, in their new order. Of a tensor with several dimensions a row is the last one,
/// of a vector each value.
#[derive(Debug, Clone)]
pub(super) enum Rows {
    /// All, as they are.
    All,
    /// One run.
    Slice(Range<u64>),
    /// All: q or k with RoPE pairs next to each other.
    Pairs(PairOrder),
    /// All: value heads in tiles.
    Tiles(Tiles),
    /// Parts of equal groups.
    Grouped(Vec<Group>),
}

impl Rows {
    /// The runs of rows; `None` for all. The tensor's shape must have been checked before, it bounds the list.
    pub(super) fn ranges(&self) -> Option<Vec<Range<u64>>> {
        Some(match self {
            Self::All => return None,
            Self::Slice(rows) => vec![rows.clone()],
            Self::Pairs(order) => order.rows().map(|row| row..row + 1).collect(),
            Self::Tiles(tiles) => tiles.ranges().collect(),
            Self::Grouped(parts) => parts.iter().flat_map(Group::ranges).collect(),
        })
    }
}

/// Row order of q and k where RoPE turns neighbouring pairs: in each head, rows 2j and 2j + 1 of
/// the rotary part are what the half-split form has in rows j and j + rotary_dim / 2.
#[derive(Debug, Clone, Copy)]
pub(super) struct PairOrder {
    pub(super) heads: u64,
    pub(super) head_dim: u64,
    pub(super) rotary_dim: u64,
}

impl PairOrder {
    /// The rows in half-split order.
    fn rows(self) -> impl Iterator<Item = u64> {
        let half = self.rotary_dim / 2;
        let stored = move |row: u64| match row {
            row if row >= self.rotary_dim => row,
            row if row < half => 2 * row,
            row => 2 * (row - half) + 1,
        };
        (0..self.heads).flat_map(move |head| (0..self.head_dim).map(move |row| head * self.head_dim + stored(row)))
    }
}

/// Order of value heads behind `first` other rows: in a file, the first value heads of all key heads, then the
/// second ones and so on; canonically, the value heads of a key head follow each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tiles {
    /// Rows in front that stay where they are.
    pub(super) first: u64,
    pub(super) key_heads: u64,
    /// Value heads per key head.
    pub(super) group: u64,
    /// Rows of a value head.
    pub(super) head_rows: u64,
}

impl Tiles {
    /// Runs of rows in canonical order.
    pub(super) fn ranges(self) -> impl Iterator<Item = Range<u64>> {
        let head = move |key: u64, value: u64| {
            let start = self.first + (value * self.key_heads + key) * self.head_rows;
            start..start + self.head_rows
        };
        let front = (self.first > 0).then_some(0..self.first);
        let heads = (0..self.key_heads).flat_map(move |key| (0..self.group).map(move |value| head(key, value)));
        front.into_iter().chain(heads)
    }
}

/// `len` rows from `start` on of each of `count` blocks of `stride` rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Group {
    pub(super) count: u64,
    pub(super) stride: u64,
    pub(super) start: u64,
    pub(super) len: u64,
}

impl Group {
    fn ranges(&self) -> impl Iterator<Item = Range<u64>> + use<> {
        let Self { count, stride, start, len } = *self;
        (0..count).map(move |block| block * stride + start..block * stride + start + len)
    }
}

/// What is done to the values after the rows are chosen.
#[derive(Debug, Clone, Copy)]
pub(super) enum Values {
    /// Nothing.
    AsStored,
    /// 1 is subtracted. A file has `1 + w` of norms that multiply by `1 + w`, rounded to f32; the difference is exact
    /// (it has no finer unit in the last place than the sum), so that `1 + (v - 1)` is the stored `v` again.
    MinusOne,
    /// `ln(-v)`: a file has `-exp(A_log)`.
    LogOfNegated,
    /// Columns that belong to value heads in tiles.
    TiledColumns(Tiles),
    /// The tensor is `k_b` `[heads, rank, nope]`, the second one `v_b` `[heads, value, rank]`; together they are the
    /// rows `[nope | value]` of each head, `rank` wide.
    LatentKv { heads: u64, rank: u64, nope: u64, value: u64 },
}

/// A growing plan.
#[derive(Debug, Default)]
pub(super) struct Plan {
    pub(super) tensors: Vec<Planned>,
    /// Tensors of the file that the architecture has read already.
    pub(super) consumed: Vec<String>,
}

impl Plan {
    /// Adds a tensor that must be there and is as it is in the file.
    pub(super) fn add(&mut self, gguf: impl Into<String>, name: impl Into<String>, shape: &[u64]) -> &mut Planned {
        self.tensors.push(Planned {
            gguf: gguf.into(),
            stored: shape.to_vec(),
            also: None,
            name: name.into(),
            shape: shape.to_vec(),
            required: true,
            rows: Rows::All,
            values: Values::AsStored,
        });
        let last = self.tensors.len() - 1;
        // Just pushed.
        #[allow(clippy::indexing_slicing)]
        &mut self.tensors[last]
    }

    /// The tensors of block `block` of the file, which is layer `prefix` canonically.
    pub(super) fn block(&mut self, block: usize, prefix: String) -> Block<'_> {
        Block { plan: self, gguf: format!("blk.{block}."), name: prefix }
    }
}

/// The tensors of one block.
pub(super) struct Block<'a> {
    plan: &'a mut Plan,
    /// `blk.{i}.`
    pub(super) gguf: String,
    /// `model.layers.{i}.`
    name: String,
}

impl Block<'_> {
    /// As [`Plan::add`], inside the block.
    pub(super) fn add(&mut self, gguf: &str, name: &str, shape: &[u64]) -> &mut Planned {
        let (gguf, name) = (format!("{}{gguf}", self.gguf), format!("{}{name}", self.name));
        self.plan.add(gguf, name, shape)
    }

    /// A matrix `[out, input]` and a bias that may be there.
    pub(super) fn linear(&mut self, gguf: &str, name: &str, out: u64, input: u64, rows: &Rows) {
        self.add(&format!("{gguf}.weight"), &format!("{name}.weight"), &[out, input]).rows(rows.clone());
        self.add(&format!("{gguf}.bias"), &format!("{name}.bias"), &[out]).rows(rows.clone()).optional();
    }

    /// Rows of a matrix `[stored, input]`.
    pub(super) fn slice(&mut self, gguf: &str, name: &str, rows: Range<u64>, stored: u64, input: u64) {
        let len = rows.end.saturating_sub(rows.start);
        self.add(gguf, name, &[len, input]).stored(&[stored, input]).rows(Rows::Slice(rows));
    }

    /// A norm; `offset` says that the file has 1 + the weight.
    pub(super) fn norm(&mut self, gguf: &str, name: &str, len: u64, offset: bool) {
        let planned = self.add(&format!("{gguf}.weight"), &format!("{name}.weight"), &[len]);
        if offset {
            planned.values(Values::MinusOne);
        }
    }
}

/// Checks a shape; dimensions of 1 in front do not count, some writers leave them out.
///
/// # Errors
/// [`GgufError::Shape`].
pub(super) fn check_shape(record: &TensorRecord, expected: &[u64]) -> Result<(), GgufError> {
    if trimmed(&record.shape) == trimmed(expected) {
        Ok(())
    } else {
        Err(GgufError::Shape { name: record.name.clone(), expected: expected.to_vec(), found: record.shape.clone() })
    }
}

fn trimmed(mut shape: &[u64]) -> &[u64] {
    while let [1, rest @ ..] = shape
        && !rest.is_empty()
    {
        shape = rest;
    }
    shape
}
