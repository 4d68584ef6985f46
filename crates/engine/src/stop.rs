//! Stop strings: ends a generation where its text reaches one of several strings, across token borders.

use crate::EngineError;

/// Longest stop string accepted, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Looks for stop strings in text that arrives in pieces, and holds back what may be the start of one.
///
/// The match that is complete first wins; of two that end at the same place, the longer. How the text
/// was cut into pieces does not change the result.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Vec<Pattern>,
    held: String,
    matched: Option<usize>,
}

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct StopOutcome {
    /// Text that is certain to belong to the answer.
    pub text: String,
    /// Index of the stop string that was reached: the answer is finished.
    pub matched: Option<usize>,
}

/// One stop string with its Knuth-Morris-Pratt table.
#[derive(Debug, Clone)]
struct Pattern {
    bytes: Vec<u8>,
    /// For a matched prefix of length n (index n - 1): its longest proper prefix that is also its suffix.
    fallback: Vec<usize>,
    /// Bytes of the pattern that the text seen so far ends with.
    length: usize,
}

impl StopMatcher {
    /// Makes a matcher; without stop strings it passes all text on.
    ///
    /// # Errors
    /// [`EngineError::StopString`] for an empty stop string or one above [`MAX_STOP_BYTES`].
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Result<Self, EngineError> {
        let patterns = stops
            .iter()
            .enumerate()
            .map(|(index, stop)| match stop.as_ref().len() {
                0 => Err(EngineError::StopString(format!("number {index} is empty"))),
                n if n > MAX_STOP_BYTES => Err(EngineError::StopString(format!(
                    "number {index} has {n} bytes; at most {MAX_STOP_BYTES} are allowed"
                ))),
                _ => Ok(Pattern::new(stop.as_ref())),
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { patterns, held: String::new(), matched: None })
    }

    /// Takes the next piece of text; after a match nothing more comes out.
    pub fn push(&mut self, text: &str) -> StopOutcome {
        if self.matched.is_some() {
            return self.outcome(String::new());
        }
        let before = self.held.len();
        self.held.push_str(text);
        for (offset, &byte) in text.as_bytes().iter().enumerate() {
            if let Some((index, length)) = self.step(byte) {
                self.matched = Some(index);
                // A match is whole characters, so the cut is at a character border.
                self.held.truncate((before + offset + 1).saturating_sub(length));
                let answer = std::mem::take(&mut self.held);
                return self.outcome(answer);
            }
        }
        let keep = self.patterns.iter().map(|p| p.length).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len().saturating_sub(keep));
        let certain = std::mem::replace(&mut self.held, rest);
        self.outcome(certain)
    }

    /// Ends the text: gives what was held back, if no stop string was reached.
    pub fn flush(&mut self) -> String {
        for pattern in &mut self.patterns {
            pattern.length = 0;
        }
        std::mem::take(&mut self.held)
    }

    /// Index of the stop string that was reached, if any.
    pub fn matched(&self) -> Option<usize> {
        self.matched
    }

    /// Feeds one byte to all patterns; index and length of the longest one complete now.
    fn step(&mut self, byte: u8) -> Option<(usize, usize)> {
        let mut best: Option<(usize, usize)> = None;
        for (index, pattern) in self.patterns.iter_mut().enumerate() {
            let complete = pattern.step(byte);
            if complete && best.is_none_or(|(_, length)| pattern.length > length) {
                best = Some((index, pattern.length));
            }
        }
        best
    }

    fn outcome(&self, text: String) -> StopOutcome {
        StopOutcome { text, matched: self.matched }
    }
}

impl Pattern {
    fn new(stop: &str) -> Self {
        let mut pattern = Self { bytes: stop.as_bytes().to_vec(), fallback: vec![0], length: 0 };
        // The table is the automaton run over the pattern itself, one byte behind.
        for &byte in stop.as_bytes().iter().skip(1) {
            pattern.step(byte);
            pattern.fallback.push(pattern.length);
        }
        pattern.length = 0;
        pattern
    }

    /// Feeds one byte; whether the pattern is complete.
    fn step(&mut self, byte: u8) -> bool {
        while self.length > 0 && self.bytes.get(self.length) != Some(&byte) {
            self.length = self.fallback.get(self.length - 1).copied().unwrap_or(0);
        }
        if self.bytes.get(self.length) == Some(&byte) {
            self.length += 1;
        }
        self.length == self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds pieces; the text that came out, the match, and the text after each piece.
    fn run(stops: &[&str], pieces: &[&str]) -> (String, Option<usize>, Vec<String>) {
        let mut matcher = StopMatcher::new(stops).unwrap();
        let outs: Vec<_> = pieces.iter().map(|p| matcher.push(p).text).collect();
        let text = outs.concat() + &matcher.flush();
        (text, matcher.matched(), outs)
    }

    #[test]
    fn cuts_before_the_stop_string() {
        type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a str, Option<usize>);
        let cases: &[Case] = &[
            (&[], &["any", "thing"], "anything", None),
            (&["END"], &["abc EN", "D def"], "abc ", Some(0)),
            (&["END"], &["abc EN", "T"], "abc ENT", None),
            (&["END"], &["E", "E", "N", "D"], "E", Some(0)),
            (&["aab"], &["a", "a", "a", "b"], "a", Some(0)),
            (&["x", "abcx"], &["ab", "cx"], "", Some(1)),
            // "b" is complete first although "abc" starts first.
            (&["abc", "b"], &["abc"], "a", Some(1)),
            (&["\n\n"], &["a\n", "b\n", "\nc"], "a\nb", Some(0)),
            // A pattern that shares bytes, but not characters, with the text.
            (&["é"], &["è", "é!"], "è", Some(0)),
            (&["日本"], &["日", "日", "本"], "日", Some(0)),
            (&["ab"], &["a"], "a", None),
        ];
        for (stops, pieces, text, matched) in cases {
            let (got, index, _) = run(stops, pieces);
            assert_eq!((got.as_str(), index), (*text, *matched), "{stops:?} {pieces:?}");
        }
    }

    #[test]
    fn holds_back_only_what_may_be_a_start() {
        let (_, _, outs) = run(&["stop", "sto!"], &["a s", "t", "o", "ne", " st"]);
        assert_eq!(outs, ["a ", "", "", "stone", " "]);
    }

    #[test]
    fn nothing_comes_after_a_match() {
        let mut matcher = StopMatcher::new(&["."]).unwrap();
        assert_eq!(matcher.push("a.b").text, "a");
        let after = matcher.push("more");
        assert_eq!((after.text.as_str(), after.matched), ("", Some(0)));
        assert_eq!(matcher.flush(), "");
    }

    #[test]
    fn unusable_stop_strings_are_refused() {
        let long = "x".repeat(MAX_STOP_BYTES + 1);
        for (stops, word) in [(["a", ""], "number 1 is empty"), (["a", &long], "1025 bytes")] {
            let error = StopMatcher::new(&stops).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    /// The rule, stated over the whole text: the match that ends first, of those the longest.
    fn expected<'a>(stops: &[String], text: &'a str) -> (&'a str, bool) {
        for end in 1..=text.len() {
            let ending = stops.iter().filter(|s| text.as_bytes()[..end].ends_with(s.as_bytes()));
            if let Some(longest) = ending.map(String::len).max() {
                return (&text[..end - longest], true);
            }
        }
        (text, false)
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_answer(
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            pieces in prop::collection::vec("[abcé]{0,4}", 0..12),
        ) {
            let text = pieces.concat();
            let (want, found) = expected(&stops, &text);
            let stop_refs: Vec<&str> = stops.iter().map(String::as_str).collect();
            let piece_refs: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (got, matched, _) = run(&stop_refs, &piece_refs);
            prop_assert_eq!(got, want);
            prop_assert_eq!(matched.is_some(), found);
        }
    }
}
