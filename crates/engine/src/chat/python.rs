//! Values as Python prints them: templates were written against `str()` of Python's types.

use std::fmt::Write;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Output, State, Value};

/// Deepest nesting of lists and maps that is printed.
pub(super) const MAX_DEPTH: usize = 128;

/// Bytes of serialised text per unit of fuel, as for the template engine's own conversions.
pub(super) const BYTES_PER_FUEL: usize = 4;

/// Writes the value of `{{ ... }}`: text as it is, nothing for an undefined value, else Python's `str()`.
pub(super) fn print(out: &mut Output, state: &mut State, value: &Value) -> Result<(), Error> {
    if value.is_undefined() {
        return Ok(());
    }
    match value.as_str() {
        Some(text) => out.write_str(text)?,
        None => {
            let mut text = String::new();
            repr(&mut text, value, 0, state)?;
            out.write_str(&text)?;
        }
    }
    Ok(())
}

/// Appends Python's `repr()` of a value, at the cost of one unit of fuel per value and per four bytes.
fn repr(out: &mut String, value: &Value, depth: usize, state: &State) -> Result<(), Error> {
    check_depth(depth)?;
    let bytes = value.as_str().map_or(0, str::len);
    state.consume_fuel(1 + (bytes / BYTES_PER_FUEL) as u64)?;
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::String => quote(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&float(f64::try_from(value.clone())?));
        }
        ValueKind::Seq => {
            let tuple = value.is_tuple();
            out.push(if tuple { '(' } else { '[' });
            let mut count = 0;
            for item in value.try_iter()?.checked() {
                if count > 0 {
                    out.push_str(", ");
                }
                repr(out, &item?, depth + 1, state)?;
                count += 1;
            }
            out.push_str(match (tuple, count) {
                (true, 1) => ",)",
                (true, _) => ")",
                (false, _) => "]",
            });
        }
        ValueKind::Map => {
            out.push('{');
            for (n, key) in value.try_iter()?.checked().enumerate() {
                let key = key?;
                if n > 0 {
                    out.push_str(", ");
                }
                repr(out, &key, depth + 1, state)?;
                out.push_str(": ");
                repr(out, &value.get_item(&key)?, depth + 1, state)?;
            }
            out.push('}');
        }
        // Integers, truth values and none are printed as in Python by the template engine.
        _ => write!(out, "{value}")?,
    }
    Ok(())
}

pub(super) fn check_depth(depth: usize) -> Result<(), Error> {
    if depth < MAX_DEPTH {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidOperation, format!("a value is nested more than {MAX_DEPTH} levels deep")))
}

/// A float as `repr()` writes it: the shortest digits that give the same number, with an exponent below
/// 1e-4 and from 1e16 on.
pub(super) fn float(x: f64) -> String {
    if !x.is_finite() {
        let name = if x.is_nan() { "nan" } else { "inf" };
        return format!("{}{name}", if x < 0.0 { "-" } else { "" });
    }
    if x == 0.0 || (1e-4..1e16).contains(&x.abs()) {
        return format!("{x:?}");
    }
    let text = format!("{x:e}");
    match text.split_once('e') {
        Some((digits, exponent)) => {
            let (sign, size) = match exponent.strip_prefix('-') {
                Some(size) => ('-', size),
                None => ('+', exponent),
            };
            format!("{digits}e{sign}{size:0>2}")
        }
        None => text,
    }
}

/// Appends a string in quotes, the way `repr()` chooses and escapes them.
fn quote(out: &mut String, text: &str) {
    let mark = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(mark);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            _ if c == mark => out.extend(['\\', c]),
            _ if is_printable(c) => out.push(c),
            _ => out.push_str(&escape(u32::from(c))),
        }
    }
    out.push(mark);
}

fn escape(code: u32) -> String {
    match code {
        0..=0xFF => format!("\\x{code:02x}"),
        0x100..=0xFFFF => format!("\\u{code:04x}"),
        _ => format!("\\U{code:08x}"),
    }
}

/// Python's `isprintable` for what occurs in text: no controls, separators other than the space, nor
/// invisible format characters.
fn is_printable(c: char) -> bool {
    let format = matches!(
        c,
        '\u{AD}' | '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}'
    );
    !(c.is_control() || format || (c.is_whitespace() && c != ' '))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_as_in_python() {
        let cases = [
            (0.0, "0.0"),
            (-0.0, "-0.0"),
            (1.0, "1.0"),
            (0.1, "0.1"),
            (-2.5, "-2.5"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-10, "1.5e-10"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e100, "1.25e+100"),
            (f64::INFINITY, "inf"),
            (f64::NEG_INFINITY, "-inf"),
            (f64::NAN, "nan"),
        ];
        for (x, text) in cases {
            assert_eq!(float(x), text);
        }
    }

    #[test]
    fn strings_as_in_python() {
        let cases = [
            ("a", "'a'"),
            ("it's", "\"it's\""),
            ("'\"", "'\\'\"'"),
            ("\\\n\t\r", "'\\\\\\n\\t\\r'"),
            ("é\u{1}\u{A0}\u{2028}", "'é\\x01\\xa0\\u2028'"),
        ];
        for (text, expected) in cases {
            let mut out = String::new();
            quote(&mut out, text);
            assert_eq!(out, expected);
        }
    }
}
