//! Checked access to the JSON configuration files of a checkpoint.

use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use crate::{ConvertError, files};

/// A parsed JSON object, e.g. `config.json`.
#[derive(Debug, Clone, Default)]
pub(crate) struct JsonFile {
    root: Map<String, Value>,
}

impl JsonFile {
    /// Reads `dir/file`; `None` when there is no such file.
    pub(crate) fn read(dir: &Path, file: &str) -> Result<Option<Self>, ConvertError> {
        let path = dir.join(file);
        let Some(bytes) = files::read_optional(&path).map_err(|e| ConvertError::io(&path, e))? else {
            return Ok(None);
        };
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(root)) => Ok(Some(Self { root })),
            Ok(_) => Err(json_error(file, "is not a JSON object")),
            Err(e) => Err(json_error(file, e.to_string())),
        }
    }

    /// The file's keys.
    pub(crate) fn object(&self) -> Object<'_> {
        Object { maps: vec![&self.root], prefix: String::new() }
    }

    /// The keys of the text model: those of `text_config`, then those of the file itself.
    pub(crate) fn text(&self) -> Result<Object<'_>, ConvertError> {
        match self.root.get("text_config") {
            None | Some(Value::Null) => Ok(self.object()),
            Some(Value::Object(text)) => Ok(Object { maps: vec![text, &self.root], prefix: String::new() }),
            Some(_) => Err(ConvertError::invalid("text_config", "is not an object")),
        }
    }
}

/// A [`ConvertError::Json`] about `file`.
pub(crate) fn json_error(file: &str, reason: impl Into<String>) -> ConvertError {
    ConvertError::Json { file: file.to_owned(), reason: reason.into() }
}

/// One JSON object, or several laid over each other (the first that has a key wins).
/// A key whose value is `null` counts as absent.
#[derive(Debug, Clone)]
pub(crate) struct Object<'a> {
    maps: Vec<&'a Map<String, Value>>,
    prefix: String,
}

impl<'a> Object<'a> {
    /// The value of `key`, unless absent or null.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Value> {
        self.maps.iter().filter_map(|m| m.get(key)).find(|v| !v.is_null())
    }

    /// The same keys, and under them those of `defaults` for what is absent or null.
    pub(crate) fn with_defaults<'b>(&self, defaults: &'b Value) -> Object<'b>
    where
        'a: 'b,
    {
        let mut maps: Vec<&'b Map<String, Value>> = self.maps.clone();
        maps.extend(defaults.as_object());
        Object { maps, prefix: self.prefix.clone() }
    }

    /// The same keys, and over them those of `keys`.
    pub(crate) fn overlaid<'b>(&self, keys: &'b Value) -> Object<'b>
    where
        'a: 'b,
    {
        let mut maps: Vec<&'b Map<String, Value>> = keys.as_object().into_iter().collect();
        maps.extend(&self.maps);
        Object { maps, prefix: self.prefix.clone() }
    }

    /// The first of `keys` that has a value, else the first of all: one thing under several names.
    pub(crate) fn alias<'k>(&self, keys: [&'k str; 2]) -> &'k str {
        let [first, second] = keys;
        if self.get(first).is_none() && self.get(second).is_some() { second } else { first }
    }

    /// True when `key` is there, be it with the value null.
    pub(crate) fn has_key(&self, key: &str) -> bool {
        self.maps.iter().any(|m| m.contains_key(key))
    }

    /// The object under `key`.
    pub(crate) fn child(&self, key: &str) -> Result<Option<Object<'a>>, ConvertError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(map)) => Ok(Some(Object { maps: vec![map], prefix: format!("{}{key}.", self.prefix) })),
            Some(_) => Err(self.invalid(key, "is not an object")),
        }
    }

    /// Keys whose values are objects.
    pub(crate) fn object_keys(&self) -> Vec<&'a str> {
        let entries = self.maps.iter().flat_map(|m| m.iter());
        entries.filter(|(_, v)| v.is_object()).map(|(k, _)| k.as_str()).collect()
    }

    /// An [`ConvertError::InvalidConfig`] about `key` of this object.
    pub(crate) fn invalid(&self, key: &str, reason: impl Into<String>) -> ConvertError {
        ConvertError::invalid(format!("{}{key}", self.prefix), reason)
    }

    /// An [`ConvertError::UnsupportedConfig`] about `key` of this object.
    pub(crate) fn unsupported(&self, key: &str, value: impl ToString, detail: &str) -> ConvertError {
        ConvertError::unsupported(format!("{}{key}", self.prefix), value, detail)
    }

    /// An integer in `range`; integral floats are accepted.
    pub(crate) fn int(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let number = as_integer(value).and_then(|n| usize::try_from(n).ok());
        match number {
            Some(n) if range.contains(&n) => Ok(Some(n)),
            _ => {
                Err(self
                    .invalid(key, format!("is {value}, expected an integer from {} to {}", range.start(), range.end())))
            }
        }
    }

    /// As [`Object::int`]; the key must be there.
    pub(crate) fn required_int(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize, ConvertError> {
        self.int(key, range)?.ok_or_else(|| self.invalid(key, "is missing"))
    }

    /// A finite number in `range`.
    pub(crate) fn float(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<f64>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(x) if x.is_finite() && range.contains(&x) => Ok(Some(x)),
            _ => {
                Err(self
                    .invalid(key, format!("is {value}, expected a number from {} to {}", range.start(), range.end())))
            }
        }
    }

    /// As [`Object::float`]; the key must be there.
    pub(crate) fn required_float(&self, key: &str, range: RangeInclusive<f64>) -> Result<f64, ConvertError> {
        self.float(key, range)?.ok_or_else(|| self.invalid(key, "is missing"))
    }

    /// A truth value.
    pub(crate) fn boolean(&self, key: &str) -> Result<Option<bool>, ConvertError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.invalid(key, format!("is {other}, expected true or false"))),
        }
    }

    /// A string.
    pub(crate) fn string(&self, key: &str) -> Result<Option<&'a str>, ConvertError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::String(s)) => Ok(Some(s)),
            Some(other) => Err(self.invalid(key, format!("is {other}, expected a string"))),
        }
    }

    /// A list of strings.
    pub(crate) fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, ConvertError> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Array(items)) => {
                let strings: Option<Vec<&str>> = items.iter().map(Value::as_str).collect();
                strings.map(Some).ok_or_else(|| self.invalid(key, "is not a list of strings"))
            }
            Some(_) => Err(self.invalid(key, "is not a list of strings")),
        }
    }

    /// A list of finite numbers, each in `range`.
    pub(crate) fn floats(&self, key: &str, range: RangeInclusive<f64>) -> Result<Option<Vec<f64>>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let items = value.as_array().and_then(|items| items.iter().map(Value::as_f64).collect::<Option<Vec<f64>>>());
        match items {
            Some(items) if items.iter().all(|x| x.is_finite() && range.contains(x)) => Ok(Some(items)),
            _ => {
                let reason = format!("is not a list of numbers from {} to {}", range.start(), range.end());
                Err(self.invalid(key, reason))
            }
        }
    }

    /// A list of integers, each in `range`.
    pub(crate) fn ints(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<Vec<usize>>, ConvertError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let integer =
            |item: &Value| as_integer(item).and_then(|n| usize::try_from(n).ok()).filter(|n| range.contains(n));
        match value.as_array().and_then(|items| items.iter().map(integer).collect::<Option<Vec<usize>>>()) {
            Some(items) => Ok(Some(items)),
            None => {
                let reason = format!("is not a list of integers from {} to {}", range.start(), range.end());
                Err(self.invalid(key, reason))
            }
        }
    }

    /// One token id or a list of them, each below `vocab_size`. Empty when absent.
    pub(crate) fn token_ids(&self, key: &str, vocab_size: usize) -> Result<Vec<u32>, ConvertError> {
        let items = match self.get(key) {
            None => return Ok(Vec::new()),
            Some(Value::Array(items)) => items.as_slice(),
            Some(one) => std::slice::from_ref(one),
        };
        items
            .iter()
            .map(|item| {
                as_integer(item)
                    .and_then(|id| u32::try_from(id).ok())
                    .filter(|&id| usize::try_from(id).is_ok_and(|id| id < vocab_size))
                    .ok_or_else(|| self.invalid(key, format!("has {item}, expected a token id below {vocab_size}")))
            })
            .collect()
    }
}

/// The value as an integer; floats without a fraction (which some tools write) count.
fn as_integer(value: &Value) -> Option<i64> {
    value.as_i64().or_else(|| {
        let x = value.as_f64()?;
        // Up to 2^53 every integral f64 is exact.
        (x.fract() == 0.0 && x.abs() <= 9_007_199_254_740_992.0).then_some(x as i64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> JsonFile {
        JsonFile { root: serde_json::from_str(text).unwrap() }
    }

    #[test]
    fn numbers_are_range_checked_and_errors_name_the_key() {
        let f = file(r#"{"a": 7, "b": 1e3, "c": -1, "d": 2.5, "e": "x", "n": null, "r": {"z": 0}}"#);
        let o = f.object();
        assert_eq!(o.int("a", 1..=10).unwrap(), Some(7));
        assert_eq!(o.int("b", 1..=1000).unwrap(), Some(1000));
        assert_eq!(o.int("n", 1..=10).unwrap(), None);
        assert_eq!(o.float("d", 0.0..=3.0).unwrap(), Some(2.5));
        for key in ["c", "d", "e"] {
            let text = o.int(key, 1..=10).unwrap_err().to_string();
            assert!(text.contains(&format!("`{key}`")), "{text}");
        }
        assert!(o.int("a", 8..=10).is_err());
        assert!(o.float("e", 0.0..=1.0).is_err());
        assert!(o.required_int("missing", 0..=1).unwrap_err().to_string().contains("`missing` is missing"));
        let nested = o.child("r").unwrap().unwrap();
        assert!(nested.int("z", 1..=2).unwrap_err().to_string().contains("`r.z`"));
    }

    #[test]
    fn lists_are_checked_and_defaults_lie_under_everything() {
        let f = file(r#"{"a": [1, 2.5], "b": [1, 0.0], "c": [1, "x"], "d": 3, "n": null}"#);
        let o = f.object();
        assert_eq!(o.floats("a", 1.0..=3.0).unwrap(), Some(vec![1.0, 2.5]));
        assert_eq!(o.ints("b", 0..=1).unwrap(), Some(vec![1, 0]));
        assert_eq!((o.floats("n", 0.0..=1.0).unwrap(), o.ints("n", 0..=1).unwrap()), (None, None));
        for key in ["a", "c", "d"] {
            assert!(o.floats(key, 0.0..=1.0).unwrap_err().to_string().contains(&format!("`{key}`")), "{key}");
            assert!(o.ints(key, 0..=1).unwrap_err().to_string().contains(&format!("`{key}`")), "{key}");
        }
        let defaults = serde_json::json!({"d": 4, "n": 5, "m": 6});
        let o = o.with_defaults(&defaults);
        let get = |key| o.int(key, 0..=9).unwrap();
        assert_eq!((get("d"), get("n"), get("m"), get("x")), (Some(3), Some(5), Some(6), None));
        assert_eq!((o.alias(["x", "n"]), o.alias(["x", "y"]), o.alias(["d", "n"])), ("n", "x", "d"));
    }

    #[test]
    fn text_config_is_laid_over_the_file() {
        let f = file(r#"{"x": 1, "y": 2, "text_config": {"x": 3, "y": null}}"#);
        let o = f.text().unwrap();
        assert_eq!(o.int("x", 0..=9).unwrap(), Some(3));
        assert_eq!(o.int("y", 0..=9).unwrap(), Some(2));
        assert!(file(r#"{"text_config": 3}"#).text().is_err());
    }

    #[test]
    fn token_ids_take_one_or_many() {
        let f = file(r#"{"a": 5, "b": [1, 2], "c": [1, -2], "d": 10, "e": ["x"]}"#);
        let o = f.object();
        assert_eq!(o.token_ids("a", 10).unwrap(), [5]);
        assert_eq!(o.token_ids("b", 10).unwrap(), [1, 2]);
        assert!(o.token_ids("none", 10).unwrap().is_empty());
        for key in ["c", "d", "e"] {
            assert!(o.token_ids(key, 10).is_err(), "{key}");
        }
    }
}
