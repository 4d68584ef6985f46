//! A GGUF writer for tests; it writes whatever it is told to, sound or not.

use crate::gguf::GgufFile;
use crate::gguf::metadata::ValueType;

/// A metadata value.
#[derive(Debug, Clone)]
pub(super) enum Item {
    U32(u32),
    I32(i32),
    U64(u64),
    F32(f32),
    Bool(bool),
    Str(String),
    Strs(Vec<String>),
    I32s(Vec<i32>),
    F32s(Vec<f32>),
    Bytes(Vec<u8>),
    /// Type number and payload, verbatim.
    Raw(u32, Vec<u8>),
}

impl From<&str> for Item {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}

/// A tensor; the shape is outermost first.
#[derive(Debug, Clone)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) type_id: u32,
    pub(super) data: Vec<u8>,
    /// Replaces the offset that the writer would compute.
    pub(super) offset: Option<u64>,
}

/// The parts of a file.
#[derive(Debug, Clone)]
pub(super) struct Writer {
    pub(super) version: u32,
    pub(super) items: Vec<(String, Item)>,
    pub(super) tensors: Vec<Tensor>,
    pub(super) alignment: usize,
}

impl Default for Writer {
    fn default() -> Self {
        Self { version: 3, items: Vec::new(), tensors: Vec::new(), alignment: 32 }
    }
}

impl Writer {
    /// Sets or replaces a key.
    pub(super) fn set(&mut self, key: &str, item: impl Into<Item>) {
        let item = item.into();
        match self.items.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = item,
            None => self.items.push((key.to_owned(), item)),
        }
    }

    pub(super) fn remove(&mut self, key: &str) {
        let before = self.items.len();
        self.items.retain(|(k, _)| k != key);
        assert_ne!(self.items.len(), before, "no key {key}");
    }

    pub(super) fn tensor(&mut self, name: &str, shape: &[u64], type_id: u32, data: Vec<u8>) {
        self.tensors.push(Tensor { name: name.to_owned(), shape: shape.to_vec(), type_id, data, offset: None });
    }

    pub(super) fn f32_tensor(&mut self, name: &str, shape: &[u64], values: &[f32]) {
        let data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.tensor(name, shape, 0, data);
    }

    /// The bytes of the file.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.items.len() as u64).to_le_bytes());
        for (key, item) in &self.items {
            string(&mut out, key);
            write_item(&mut out, item);
        }
        let mut data: Vec<u8> = Vec::new();
        for tensor in &self.tensors {
            string(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for dim in tensor.shape.iter().rev() {
                out.extend(dim.to_le_bytes());
            }
            out.extend(tensor.type_id.to_le_bytes());
            data.resize(data.len().next_multiple_of(self.alignment), 0);
            out.extend(tensor.offset.unwrap_or(data.len() as u64).to_le_bytes());
            data.extend(&tensor.data);
        }
        out.resize(out.len().next_multiple_of(self.alignment), 0);
        out.extend(data);
        out
    }

    /// The file, parsed.
    pub(super) fn file(&self) -> GgufFile {
        GgufFile::from_bytes(self.bytes()).unwrap()
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn array_head(out: &mut Vec<u8>, element: ValueType, count: usize) {
    out.extend((ValueType::Array as u32).to_le_bytes());
    out.extend((element as u32).to_le_bytes());
    out.extend((count as u64).to_le_bytes());
}

fn write_item(out: &mut Vec<u8>, item: &Item) {
    let mut scalar = |kind: ValueType, bytes: &[u8]| {
        out.extend((kind as u32).to_le_bytes());
        out.extend(bytes);
    };
    match item {
        Item::U32(v) => scalar(ValueType::U32, &v.to_le_bytes()),
        Item::I32(v) => scalar(ValueType::I32, &v.to_le_bytes()),
        Item::U64(v) => scalar(ValueType::U64, &v.to_le_bytes()),
        Item::F32(v) => scalar(ValueType::F32, &v.to_le_bytes()),
        Item::Bool(v) => scalar(ValueType::Bool, &[u8::from(*v)]),
        Item::Str(v) => {
            scalar(ValueType::String, &[]);
            string(out, v);
        }
        Item::Strs(v) => {
            array_head(out, ValueType::String, v.len());
            v.iter().for_each(|text| string(out, text));
        }
        Item::I32s(v) => {
            array_head(out, ValueType::I32, v.len());
            out.extend(v.iter().flat_map(|n| n.to_le_bytes()));
        }
        Item::F32s(v) => {
            array_head(out, ValueType::F32, v.len());
            out.extend(v.iter().flat_map(|n| n.to_le_bytes()));
        }
        Item::Bytes(v) => {
            array_head(out, ValueType::U8, v.len());
            out.extend(v);
        }
        Item::Raw(kind, bytes) => {
            out.extend(kind.to_le_bytes());
            out.extend(bytes);
        }
    }
}
