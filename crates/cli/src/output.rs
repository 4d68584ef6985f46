//! What the program prints: results on the standard output, everything else on the standard error.

use std::borrow::Cow;
use std::fmt::{Display, Write as _};
use std::io::{ErrorKind, IsTerminal, Write};

use anyhow::Context;
use serde::Serialize;

/// Longest error text; messages may quote a template or a tokenizer.
const MAX_PARAGRAPH: usize = 2000;

/// Wrong usage that only shows after the flags are parsed: exit code 2.
#[derive(Debug)]
pub struct Usage(pub String);

impl Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The reader of the standard output has gone (`| head`): the program ends quietly.
#[derive(Debug)]
pub struct StdoutClosed;

impl Display for StdoutClosed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the standard output was closed")
    }
}

impl std::error::Error for StdoutClosed {}

fn stdout_error(error: std::io::Error) -> anyhow::Error {
    if error.kind() == ErrorKind::BrokenPipe {
        return StdoutClosed.into();
    }
    anyhow::Error::new(error).context("cannot write to the standard output")
}

/// Writes bytes to the standard output as they are.
pub fn write_stdout(bytes: &[u8]) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(stdout_error)
}

/// Prints text for people, with a line end. Control characters from files are made harmless on a terminal.
pub fn print_text(text: &str) -> anyhow::Result<()> {
    let text = for_stdout(text);
    write_stdout(format!("{}\n", text.trim_end_matches('\n')).as_bytes())
}

/// Prints one JSON object and a line end. Written piece by piece: a list of logits can be large.
pub fn print_json<T: Serialize>(value: &T) -> anyhow::Result<()> {
    let mut stdout = std::io::BufWriter::with_capacity(1 << 16, std::io::stdout().lock());
    if let Err(error) = serde_json::to_writer(&mut stdout, value) {
        return match error.io_error_kind() {
            Some(kind) => Err(stdout_error(kind.into())),
            None => Err(error).context("the result cannot be written as JSON"),
        };
    }
    stdout.write_all(b"\n").and_then(|()| stdout.flush()).map_err(stdout_error)
}

/// The text as it may be written to the standard output: without control characters if that is a terminal, since
/// text that a model or a file made could otherwise steer it.
pub fn for_stdout(text: &str) -> Cow<'_, str> {
    if std::io::stdout().is_terminal() { without_controls(text) } else { Cow::Borrowed(text) }
}

/// `text` with U+FFFD for control characters other than line ends and tabs.
fn without_controls(text: &str) -> Cow<'_, str> {
    let unsafe_char = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(unsafe_char) { Cow::Owned(text.replace(unsafe_char, "\u{fffd}")) } else { Cow::Borrowed(text) }
}

/// Prints a line on the standard error. A failure to do so cannot be told anywhere.
pub fn note(text: impl Display) {
    let text = text.to_string();
    let _ = writeln!(std::io::stderr(), "{}", without_controls(&text));
}

/// Prints an error's paragraph.
pub fn report_error(text: &str, color: bool) {
    let mut stderr = std::io::stderr();
    let label = if color && stderr.is_terminal() { "\x1b[1;31merror:\x1b[0m" } else { "error:" };
    let _ = writeln!(stderr, "{label} {text}");
}

/// An error and its causes as one sentence in one line. A cause that the text in front of it quotes already is left out.
pub fn paragraph(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        let cause = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if cause.is_empty() || text.contains(&cause) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&without_controls(&cause));
    }
    if let Some((end, _)) = text.char_indices().nth(MAX_PARAGRAPH) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// A number of bytes for people, in decimal units.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if bytes < 1000 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64;
    let mut unit = "B";
    for next in UNITS {
        if value < 999.95 {
            break;
        }
        value /= 1000.0;
        unit = next;
    }
    format!("{value:.1} {unit}")
}

/// Columns under each other, two spaces between them. Columns named in `right` are set right-aligned.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|c| width(c).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = if column == 0 { "" } else { "  " };
            // Writing to a string cannot fail.
            let _ = if right.contains(&column) {
                write!(line, "{gap}{cell:>width$}")
            } else {
                write!(line, "{gap}{cell:<width$}")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_for_people() {
        for (bytes, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (98_362_432, "98.4 MB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (u64::MAX, "18446744.1 TB"),
        ] {
            assert_eq!(human_bytes(bytes), text);
        }
    }

    #[test]
    fn causes_join_to_one_line_without_repetition() {
        let inner = std::io::Error::other("no such\n  thing");
        let error = anyhow::Error::new(inner).context("model.cmf: no such thing").context("cannot open\x1b[31m it");
        assert_eq!(paragraph(&error), "cannot open\u{fffd}[31m it: model.cmf: no such thing");
    }

    #[test]
    fn long_errors_are_cut_at_a_character() {
        let error = anyhow::Error::msg("é".repeat(3 * MAX_PARAGRAPH));
        let text = paragraph(&error);
        assert_eq!(text.chars().count(), MAX_PARAGRAPH + 1);
        assert!(text.ends_with("é…"));
    }

    #[test]
    fn columns_line_up() {
        let rows = [["name", "n"], ["a", "100"], ["bcdefg", "1"]].map(|r| r.map(String::from).to_vec());
        assert_eq!(table(&rows, &[1]), "name      n\na       100\nbcdefg    1\n");
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(without_controls("a\tb\nc"), "a\tb\nc");
        assert_eq!(without_controls("\x1b]0;x\x07\u{9b}\r"), "\u{fffd}]0;x\u{fffd}\u{fffd}\u{fffd}");
    }
}
