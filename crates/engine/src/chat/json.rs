//! JSON into and out of templates. `tojson` writes what Python's `json.dumps` writes, which is what
//! `transformers` replaces Jinja's filter with: nothing is escaped for HTML.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

use super::python::{BYTES_PER_FUEL, check_depth, float};

/// A template value from JSON; objects keep the order of their keys.
pub(super) fn to_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(n) => {
            if let Some(i) = n.as_i64() {
                Value::from(i)
            } else if let Some(u) = n.as_u64() {
                Value::from(u)
            } else {
                Value::from(n.as_f64().unwrap_or(f64::NAN))
            }
        }
        serde_json::Value::String(s) => Value::from(s.as_str()),
        serde_json::Value::Array(items) => items.iter().map(to_value).collect(),
        serde_json::Value::Object(map) => Value::from_pairs(map.iter().map(|(k, v)| (k.as_str(), to_value(v)))),
    }
}

/// Names of the arguments of [`tojson`], in Python's order.
const ARGUMENTS: [&str; 4] = ["ensure_ascii", "indent", "separators", "sort_keys"];

/// The filter `tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(state: &State, value: &Value, positional: Rest<Value>, named: Kwargs) -> Result<String, Error> {
    if positional.len() > ARGUMENTS.len() {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let argument = |index: usize| -> Result<Option<Value>, Error> {
        let value = match (positional.get(index), ARGUMENTS.get(index)) {
            (Some(value), _) => Some(value.clone()),
            (None, Some(name)) => named.get::<Option<Value>>(name)?,
            (None, None) => None,
        };
        Ok(value.filter(|v| !v.is_none()))
    };
    let ensure_ascii = argument(0)?.is_some_and(|v| v.is_true());
    let indent = argument(1)?.map(indentation).transpose()?;
    let separators = argument(2)?;
    let sort_keys = argument(3)?.is_some_and(|v| v.is_true());
    named.assert_all_used()?;
    let (item, key) = match separators {
        Some(pair) => (separator(&pair.get_item_by_index(0)?)?, separator(&pair.get_item_by_index(1)?)?),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let mut writer = Writer { state, out: String::new(), paid: 0, ensure_ascii, indent, item, key, sort_keys };
    writer.value(value, 0)?;
    Ok(writer.out)
}

/// Widest indentation accepted, in characters: more is a mistake, and costs memory on every line.
const MAX_INDENT: usize = 64;

/// One level of indentation: a number of spaces, or text to repeat.
fn indentation(value: Value) -> Result<String, Error> {
    let text = match value.as_str() {
        Some(text) => text.to_owned(),
        None => " ".repeat(usize::try_from(value)?.min(MAX_INDENT + 1)),
    };
    if text.len() > MAX_INDENT {
        return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: indent is above {MAX_INDENT}")));
    }
    Ok(text)
}

fn separator(value: &Value) -> Result<String, Error> {
    value
        .as_str()
        .map(str::to_owned)
        .ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "tojson: separators must be two strings"))
}

struct Writer<'a, 's, 'e> {
    state: &'a State<'s, 'e>,
    out: String,
    /// Bytes of `out` already counted against the template's fuel.
    paid: usize,
    ensure_ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort_keys: bool,
}

impl Writer<'_, '_, '_> {
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        check_depth(depth)?;
        self.pay()?;
        match value.kind() {
            ValueKind::None => self.out.push_str("null"),
            ValueKind::Bool => self.out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => self.out.push_str(&number(value)?),
            ValueKind::String => self.string(value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => self.sequence(value, depth)?,
            ValueKind::Map => self.map(value, depth)?,
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("tojson: a value of type {kind} has no JSON form"),
                ));
            }
        }
        Ok(())
    }

    fn sequence(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        self.out.push('[');
        let mut empty = true;
        for item in value.try_iter()?.checked() {
            self.separate(&mut empty, depth);
            self.value(&item?, depth + 1)?;
        }
        self.close(']', empty, depth);
        Ok(())
    }

    fn map(&mut self, value: &Value, depth: usize) -> Result<(), Error> {
        let mut keys: Vec<Value> = value.try_iter()?.checked().collect::<Result<_, _>>()?;
        if self.sort_keys {
            keys.sort();
        }
        self.out.push('{');
        let mut empty = true;
        for key in keys {
            self.separate(&mut empty, depth);
            match key.kind() {
                ValueKind::String => self.string(key.as_str().unwrap_or_default()),
                ValueKind::None => self.out.push_str("\"null\""),
                ValueKind::Bool if key.is_true() => self.out.push_str("\"true\""),
                ValueKind::Bool => self.out.push_str("\"false\""),
                _ => {
                    let text = number(&key)?;
                    self.string(&text);
                }
            }
            self.out.push_str(&self.key);
            self.value(&value.get_item(&key)?, depth + 1)?;
        }
        self.close('}', empty, depth);
        Ok(())
    }

    /// What stands before an item.
    fn separate(&mut self, empty: &mut bool, depth: usize) {
        if !std::mem::replace(empty, false) {
            self.out.push_str(&self.item);
        }
        self.new_line(depth + 1);
    }

    fn close(&mut self, bracket: char, empty: bool, depth: usize) {
        if !empty {
            self.new_line(depth);
        }
        self.out.push(bracket);
    }

    fn new_line(&mut self, depth: usize) {
        if let Some(indent) = &self.indent {
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent.as_str(), depth));
        }
    }

    fn string(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{C}' => self.out.push_str("\\f"),
                _ if c < ' ' || (self.ensure_ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                _ => self.out.push(c),
            }
        }
        self.out.push('"');
    }

    /// Counts the text written so far against the template's fuel: one unit a value and one per
    /// [`BYTES_PER_FUEL`] bytes.
    fn pay(&mut self) -> Result<(), Error> {
        let written = self.out.len() - self.paid;
        self.paid = self.out.len();
        self.state.consume_fuel(1 + (written / BYTES_PER_FUEL) as u64)
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    if value.kind() != ValueKind::Number {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            format!("tojson: a key of type {} has no JSON form", value.kind()),
        ));
    }
    let x = f64::try_from(value.clone())?;
    Ok(match x {
        _ if x.is_nan() => "NaN".to_owned(),
        _ if x.is_infinite() => format!("{}Infinity", if x < 0.0 { "-" } else { "" }),
        _ => float(x),
    })
}
