//! Assembly of shaders: typed constants, shared snippets, one operation.
//!
//! A shader is the concatenation of `enable` lines, `const` lines that carry the shape, snippets of `shaders/lib` and
//! the operation's own file. Nothing inside a file is ever replaced.

use std::fmt::Write as _;

/// Text of a file in `shaders/`.
macro_rules! wgsl {
    ($file:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/", $file))
    };
}
pub(crate) use wgsl;

/// A constant of a shader.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Constant {
    U32(u32),
    F32(f32),
    Bool(bool),
}

impl From<u32> for Constant {
    fn from(value: u32) -> Self {
        Self::U32(value)
    }
}

impl From<usize> for Constant {
    fn from(value: usize) -> Self {
        Self::U32(u32::try_from(value).unwrap_or(u32::MAX))
    }
}

impl From<f32> for Constant {
    fn from(value: f32) -> Self {
        Self::F32(value)
    }
}

impl From<bool> for Constant {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// A shader under assembly.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// For messages and timings.
    pub(crate) name: &'static str,
    enables: Vec<&'static str>,
    constants: Vec<(&'static str, Constant)>,
    parts: Vec<&'static str>,
}

impl Source {
    /// A shader with the given last part.
    pub(crate) fn new(name: &'static str, body: &'static str) -> Self {
        Self { name, enables: Vec::new(), constants: Vec::new(), parts: vec![body] }
    }

    /// With a language extension.
    pub(crate) fn enable(mut self, extension: &'static str) -> Self {
        if !self.enables.contains(&extension) {
            self.enables.push(extension);
        }
        self
    }

    /// With a constant.
    pub(crate) fn with(mut self, name: &'static str, value: impl Into<Constant>) -> Self {
        self.constants.push((name, value.into()));
        self
    }

    /// With a shared snippet.
    pub(crate) fn part(mut self, snippet: &'static str) -> Self {
        self.parts.push(snippet);
        self
    }

    /// The whole text.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for extension in &self.enables {
            let _ = writeln!(text, "enable {extension};");
        }
        for (name, value) in &self.constants {
            let _ = match value {
                Constant::U32(value) => writeln!(text, "const {name}: u32 = {value}u;"),
                Constant::F32(value) => writeln!(text, "const {name}: f32 = {value:?}f;"),
                Constant::Bool(value) => writeln!(text, "const {name}: bool = {value};"),
            };
        }
        for part in self.parts.iter().rev() {
            text.push_str(part);
            text.push('\n');
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_everything_in_order() {
        let source = Source::new("x", "body").enable("f16").with("N", 3usize).with("EPS", 1e-6f32).part("lib");
        assert_eq!(source.text(), "enable f16;\nconst N: u32 = 3u;\nconst EPS: f32 = 1e-6f;\nlib\nbody\n");
    }
}
