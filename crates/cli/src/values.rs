//! Values of flags that have a form of their own.

use std::str::FromStr;

use cortiq_quant::Encoding;

/// Token ids written `1,2,3`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenIds(pub Vec<u32>);

impl FromStr for TokenIds {
    type Err = String;

    /// Commas and white space separate the ids; an empty text is an empty list.
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() {
            return Ok(Self(Vec::new()));
        }
        // White space alone separates as well, but two commas have nothing between them.
        text.split(',')
            .flat_map(|part| {
                let mut words = part.split_whitespace().peekable();
                if words.peek().is_none() { vec![""] } else { words.collect() }
            })
            .map(token_id)
            .collect::<Result<_, _>>()
            .map(Self)
    }
}

fn token_id(word: &str) -> Result<u32, String> {
    word.parse().map_err(|_| format!("`{word}` is not a token id (ids are whole numbers, separated by commas)"))
}

/// A token id, or the word `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrefixId(pub Option<u32>);

impl FromStr for PrefixId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(None));
        }
        text.parse().map(|id| Self(Some(id))).map_err(|_| format!("`{text}` is neither a token id nor `none`"))
    }
}

/// A bias on one token, written `ID=X`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogitBias {
    /// The token.
    pub id: u32,
    /// Added to its logit.
    pub bias: f32,
}

impl FromStr for LogitBias {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (id, bias) = text.split_once('=').ok_or("write it as ID=X, for instance 42=-100")?;
        let bias = bias.parse().map_err(|_| format!("`{bias}` is not a number"))?;
        Ok(Self { id: token_id(id)?, bias })
    }
}

/// Names of the encodings as the help shows them.
pub const QUANT_NAMES: &str = "f32, f16, bf16, q8, q8_2f, q4, q4t, vbit, q1, q1p, q1s, q1t";

/// The name of an encoding, checked. What `vbit` means depends on `--mean-bits` too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QuantName(String);

impl QuantName {
    /// The encoding.
    pub fn encoding(&self, mean_bits: f64) -> Result<Encoding, String> {
        Encoding::parse(&self.0, mean_bits).ok_or_else(|| format!("`{}` is not one of {QUANT_NAMES}", self.0))
    }

    /// The name as it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for QuantName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let name = Self(text.to_owned());
        name.encoding(Encoding::VBIT_DEFAULT_MEAN_BITS).map(|_| name)
    }
}

/// An exception for some tensors, written `GLOB=DTYPE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorRule {
    /// Glob over tensor names.
    pub pattern: String,
    /// How to store what matches.
    pub quant: QuantName,
}

impl FromStr for TensorRule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (pattern, quant) = text.rsplit_once('=').ok_or("write it as GLOB=DTYPE, for instance '*.mlp.*=q8_2f'")?;
        // Checked here, so that a mistake shows before anything is downloaded or read.
        globset::Glob::new(pattern).map_err(|e| format!("the pattern `{pattern}` is no glob: {}", e.kind()))?;
        if pattern.is_empty() {
            return Err("the pattern is empty".to_owned());
        }
        Ok(Self { pattern: pattern.to_owned(), quant: quant.parse()? })
    }
}

/// Mean bits of `vbit`.
pub fn mean_bits(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(bits) if (3.0..=8.0).contains(&bits) => Ok(bits),
        _ => Err(format!("`{text}` is not a number from 3 to 8")),
    }
}

/// A stop string: any text but none.
pub fn stop_string(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a stop string cannot be empty".to_owned()),
        n if n > cortiq_engine::stop::MAX_STOP_BYTES => {
            Err(format!("it has {n} bytes; at most {} are possible", cortiq_engine::stop::MAX_STOP_BYTES))
        }
        _ => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_ids() {
        let cases: [(&str, Option<&[u32]>); 12] = [
            ("", Some(&[])),
            (" \n", Some(&[])),
            ("7", Some(&[7])),
            ("1,2,3", Some(&[1, 2, 3])),
            (" 1 , 2\n3\t4 ", Some(&[1, 2, 3, 4])),
            ("4294967295", Some(&[u32::MAX])),
            ("4294967296", None),
            ("-1", None),
            ("1,,2", None),
            ("1,", None),
            ("a,b", None),
            ("1.0", None),
        ];
        for (text, ids) in cases {
            assert_eq!(text.parse::<TokenIds>().ok().map(|i| i.0).as_deref(), ids, "{text:?}");
        }
    }

    #[test]
    fn prefix_and_bias() {
        assert_eq!("none".parse(), Ok(PrefixId(None)));
        assert_eq!("0".parse(), Ok(PrefixId(Some(0))));
        assert!("None!".parse::<PrefixId>().is_err());
        assert_eq!("5=-100".parse(), Ok(LogitBias { id: 5, bias: -100.0 }));
        assert_eq!("5=-inf".parse(), Ok(LogitBias { id: 5, bias: f32::NEG_INFINITY }));
        for text in ["5", "5=", "=1", "x=1", "5=y", "-1=2"] {
            assert!(text.parse::<LogitBias>().is_err(), "{text}");
        }
    }

    #[test]
    fn tensor_rules() {
        let rule: TensorRule = "*.mlp.*=q8_2f".parse().unwrap();
        assert_eq!((rule.pattern.as_str(), rule.quant.as_str()), ("*.mlp.*", "q8_2f"));
        for text in ["*.mlp.*", "*=q9", "=q8", "[=q8", "a{b=q8"] {
            assert!(text.parse::<TensorRule>().is_err(), "{text}");
        }
    }

    #[test]
    fn every_listed_name_is_known() {
        for name in QUANT_NAMES.split(", ") {
            assert!(name.parse::<QuantName>().is_ok(), "{name}");
        }
        assert!("q3".parse::<QuantName>().is_err());
    }

    #[test]
    fn mean_bits_range() {
        for (text, ok) in [("3", true), ("4.25", true), ("8", true), ("2.9", false), ("nan", false), ("x", false)] {
            assert_eq!(mean_bits(text).is_ok(), ok, "{text}");
        }
    }
}
