//! Typed access to the key-value pairs of a GGUF file.
//!
//! Scalars are held by value; strings and arrays stay in the file's bytes and are decoded when
//! asked for, so that a hostile length never leads to an allocation.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::GgufError;
use super::bytes::FileBytes;

/// The value types of GGUF, with their numbers in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    /// Unsigned 8 bit.
    U8 = 0,
    /// Signed 8 bit.
    I8 = 1,
    /// Unsigned 16 bit.
    U16 = 2,
    /// Signed 16 bit.
    I16 = 3,
    /// Unsigned 32 bit.
    U32 = 4,
    /// Signed 32 bit.
    I32 = 5,
    /// IEEE binary32.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// u64 length and bytes.
    String = 8,
    /// Element type, u64 count, elements.
    Array = 9,
    /// Unsigned 64 bit.
    U64 = 10,
    /// Signed 64 bit.
    I64 = 11,
    /// IEEE binary64.
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::String,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this number.
    pub fn from_id(id: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u32 == id)
    }

    /// Bytes of one value; `None` for strings and arrays.
    pub fn fixed_size(self) -> Option<u64> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }
}

/// One metadata value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any unsigned integer.
    Unsigned(u64),
    /// Any signed integer.
    Signed(i64),
    /// f32 or f64.
    Float(f64),
    /// A boolean.
    Bool(bool),
    /// Where the bytes of a string lie in the file.
    String(Range<usize>),
    /// An array.
    Array(ArrayRef),
}

/// Where an array lies in the file; the range covers the elements.
#[derive(Debug, Clone, PartialEq)]
pub struct ArrayRef {
    /// Type of the elements.
    pub element: ValueType,
    /// Number of elements.
    pub count: usize,
    /// Bytes of the elements.
    pub range: Range<usize>,
}

/// The key-value pairs of one file.
#[derive(Debug)]
pub struct Metadata {
    pub(super) bytes: Arc<FileBytes>,
    pub(super) values: HashMap<String, Value>,
}

impl Metadata {
    /// The raw value of `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// True when the file has the key.
    pub fn contains(&self, key: &str) -> bool {
        self.values.contains_key(key)
    }

    /// All keys, in no particular order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.keys().map(String::as_str)
    }

    /// The string `key`, or `None` when absent.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not a UTF-8 string.
    pub fn string(&self, key: &str) -> Result<Option<&str>, GgufError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let Value::String(range) = value else { return Err(wrong_type(key, "a string")) };
        let bytes = self.slice(key, range)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(Some(text)),
            Err(_) => Err(GgufError::bad_key(key, "is not valid UTF-8")),
        }
    }

    /// The boolean `key`, or `None` when absent.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not a boolean.
    pub fn bool(&self, key: &str) -> Result<Option<bool>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(_) => Err(wrong_type(key, "a boolean")),
        }
    }

    /// The non-negative integer `key` of any integer type, or `None` when absent.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not an integer or is negative.
    pub fn unsigned(&self, key: &str) -> Result<Option<u64>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Unsigned(n)) => Ok(Some(*n)),
            Some(Value::Signed(n)) => match u64::try_from(*n) {
                Ok(n) => Ok(Some(n)),
                Err(_) => Err(GgufError::bad_key(key, format!("{n} is negative"))),
            },
            Some(_) => Err(wrong_type(key, "an integer")),
        }
    }

    /// The token id `key`, or `None` when absent. A negative value or 2³²−1 means "none", as
    /// GGUF writers store it.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not an integer or above 32 bits.
    pub fn token_id(&self, key: &str) -> Result<Option<u32>, GgufError> {
        if matches!(self.get(key), Some(Value::Signed(n)) if *n < 0) {
            return Ok(None);
        }
        match self.unsigned(key)? {
            None => Ok(None),
            Some(n) => match u32::try_from(n) {
                Ok(u32::MAX) => Ok(None),
                Ok(id) => Ok(Some(id)),
                Err(_) => Err(GgufError::bad_key(key, format!("{n} is not a token id"))),
            },
        }
    }

    /// The finite number `key` (float or integer), or `None` when absent. A value that was stored
    /// as f32 is given as the shortest decimal that rounds to it: 1e-5, not 9.99999974738e-6.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not a number or not finite.
    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        let number = match self.get(key) {
            None => return Ok(None),
            Some(Value::Float(x)) => shortest_decimal(*x),
            Some(Value::Unsigned(n)) => *n as f64,
            Some(Value::Signed(n)) => *n as f64,
            Some(_) => return Err(wrong_type(key, "a number")),
        };
        if number.is_finite() { Ok(Some(number)) } else { Err(GgufError::bad_key(key, "is not finite")) }
    }

    /// The array of strings `key`, borrowed from the file, or `None` when absent.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not an array of UTF-8 strings.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&str>>, GgufError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        if array.element != ValueType::String {
            return Err(wrong_type(key, "an array of strings"));
        }
        let broken = || GgufError::bad_key(key, "array is damaged");
        let mut rest = self.slice(key, &array.range)?;
        let mut out = Vec::with_capacity(array.count.min(rest.len() / 8));
        for index in 0..array.count {
            let (len, tail) = rest.split_first_chunk::<8>().ok_or_else(broken)?;
            let len = usize::try_from(u64::from_le_bytes(*len)).map_err(|_| broken())?;
            let (text, tail) = tail.split_at_checked(len).ok_or_else(broken)?;
            let text = std::str::from_utf8(text)
                .map_err(|_| GgufError::bad_key(key, format!("element {index} is not valid UTF-8")))?;
            out.push(text);
            rest = tail;
        }
        Ok(Some(out))
    }

    /// The array of integers `key` (any integer type up to 64 bits signed), or `None`.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not an array of integers.
    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        let bytes = self.slice(key, &array.range)?;
        let values = match array.element {
            ValueType::U8 => bytes.iter().map(|&b| i64::from(b)).collect(),
            ValueType::I8 => bytes.iter().map(|&b| i64::from(b.cast_signed())).collect(),
            ValueType::U16 => each(bytes, |b| i64::from(u16::from_le_bytes(b))),
            ValueType::I16 => each(bytes, |b| i64::from(i16::from_le_bytes(b))),
            ValueType::U32 => each(bytes, |b| i64::from(u32::from_le_bytes(b))),
            ValueType::I32 => each(bytes, |b| i64::from(i32::from_le_bytes(b))),
            ValueType::I64 => each(bytes, i64::from_le_bytes),
            _ => return Err(wrong_type(key, "an array of integers")),
        };
        Ok(Some(values))
    }

    /// The array of booleans `key`, or `None` when absent. Integers count: 0 is false.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not an array of booleans or integers.
    pub fn bools(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        match self.array(key)? {
            Some(array) if array.element == ValueType::Bool => {
                Ok(Some(self.slice(key, &array.range)?.iter().map(|&b| b != 0).collect()))
            }
            _ => Ok(self.integers(key)?.map(|values| values.into_iter().map(|v| v != 0).collect())),
        }
    }

    /// The array of f32 (or f64, rounded) `key`, or `None` when absent.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not an array of floats.
    pub fn floats(&self, key: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        let bytes = self.slice(key, &array.range)?;
        let values = match array.element {
            ValueType::F32 => each(bytes, f32::from_le_bytes),
            ValueType::F64 => each(bytes, |b| f64::from_le_bytes(b) as f32),
            _ => return Err(wrong_type(key, "an array of floats")),
        };
        Ok(Some(values))
    }

    /// The bytes of the array of 8-bit integers `key`, or `None` when absent.
    ///
    /// # Errors
    /// [`GgufError::BadKey`] when it is not an array of 8-bit integers.
    pub fn raw_bytes(&self, key: &str) -> Result<Option<&[u8]>, GgufError> {
        let Some(array) = self.array(key)? else { return Ok(None) };
        match array.element {
            ValueType::U8 | ValueType::I8 => Ok(Some(self.slice(key, &array.range)?)),
            _ => Err(wrong_type(key, "an array of bytes")),
        }
    }

    fn array(&self, key: &str) -> Result<Option<&ArrayRef>, GgufError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(array)) => Ok(Some(array)),
            Some(_) => Err(wrong_type(key, "an array")),
        }
    }

    fn slice(&self, key: &str, range: &Range<usize>) -> Result<&[u8], GgufError> {
        self.bytes.as_slice().get(range.clone()).ok_or_else(|| GgufError::bad_key(key, "lies outside the file"))
    }
}

/// Makes a present value out of an optional one.
pub(super) fn required<T>(key: &str, value: Option<T>) -> Result<T, GgufError> {
    value.ok_or_else(|| GgufError::missing_key(key))
}

fn each<const N: usize, T>(bytes: &[u8], f: impl Fn([u8; N]) -> T) -> Vec<T> {
    bytes.as_chunks::<N>().0.iter().map(|&chunk| f(chunk)).collect()
}

fn shortest_decimal(x: f64) -> f64 {
    let single = x as f32;
    if f64::from(single) != x {
        return x;
    }
    single.to_string().parse().unwrap_or(x)
}

fn wrong_type(key: &str, wanted: &str) -> GgufError {
    GgufError::bad_key(key, format!("is not {wanted}"))
}
