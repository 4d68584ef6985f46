//! Prompt lookup: what followed the latest tokens the last time they occurred.

/// Longest suffix that is looked for.
const LONGEST_SUFFIX: usize = 3;

/// At most `count` tokens to follow `history`: the longest suffix of up to [`LONGEST_SUFFIX`] tokens that occurred
/// before decides, of several occurrences the latest. Where that one reaches the end, the text is taken to repeat.
/// Empty when the last token is new.
pub(super) fn propose(history: &[u32], count: usize) -> Vec<u32> {
    let found = (1..=LONGEST_SUFFIX).rev().find_map(|len| after_match(history, len));
    let mut drafts = Vec::new();
    for i in found.map_or(0..0, |follow| follow..follow.saturating_add(count)) {
        let token = history.get(i).or_else(|| drafts.get(i - history.len())).copied();
        drafts.extend(token);
    }
    drafts
}

/// Index after the latest earlier occurrence of the last `len` tokens.
fn after_match(history: &[u32], len: usize) -> Option<usize> {
    let suffix = history.get(history.len().checked_sub(len)?..)?;
    // Without the last token, so that something follows every match.
    let earlier = history.split_last().map_or(history, |(_, earlier)| earlier);
    earlier.windows(len).rposition(|window| window == suffix).map(|start| start + len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proposes_what_followed() {
        let cases: &[(&str, &[u32], usize, &[u32])] = &[
            ("nothing known", &[], 4, &[]),
            ("one token", &[5], 4, &[]),
            ("a new token", &[1, 2, 3], 4, &[]),
            ("suffix of one", &[7, 8, 9, 7], 2, &[8, 9]),
            ("the longest suffix decides", &[1, 2, 3, 4, 9, 3, 6, 1, 2, 3], 2, &[4, 9]),
            ("of equal ones the latest", &[1, 2, 5, 1, 2, 6, 1, 2], 1, &[6]),
            ("two tokens where three never occurred", &[2, 3, 4, 9, 2, 3], 1, &[4]),
            ("no more than asked for", &[1, 2, 3, 4, 1], 3, &[2, 3, 4]),
            ("a period goes on", &[4, 1, 2, 1, 2], 5, &[1, 2, 1, 2, 1]),
            ("a run goes on", &[3, 3], 3, &[3, 3, 3]),
            ("none asked for", &[3, 3], 0, &[]),
        ];
        for (what, history, count, want) in cases {
            assert_eq!(propose(history, *count), *want, "{what}");
        }
    }
}
