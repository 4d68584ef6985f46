//! The best tokens of a row of logits, for callers that need no more.

/// What is wanted of each logit row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// All logits.
    Logits,
    /// So many of the best tokens, at least 1.
    Top(usize),
}

/// A token and its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TopLogit {
    /// The token.
    pub id: u32,
    /// Its logit, as the model computed it.
    pub logit: f32,
}

/// The best tokens of several rows. The memory is reused from step to step.
///
/// A row is sorted by falling logit, equal ones (0 and -0 are) by rising id. NaN and +inf, which are no logits, come
/// before all others, by rising id: the first token of a row tells whether there are any.
#[derive(Clone, Debug, Default)]
pub struct TopRows {
    per_row: usize,
    tokens: Vec<TopLogit>,
    /// Sort keys of the row in work.
    keys: Vec<u32>,
}

impl TopRows {
    /// Forgets all rows. Rows of a vocabulary of `vocab_size` will have `count` tokens, or all there are.
    pub fn reset(&mut self, count: usize, vocab_size: usize) {
        self.per_row = count.min(vocab_size);
        self.tokens.clear();
    }

    /// Tokens of a row.
    pub fn per_row(&self) -> usize {
        self.per_row
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len().checked_div(self.per_row).unwrap_or(0)
    }

    /// One row, best first; empty where there is none.
    pub fn row(&self, index: usize) -> &[TopLogit] {
        self.tokens.chunks_exact(self.per_row.max(1)).nth(index).unwrap_or_default()
    }

    /// Adds a row that is sorted already; of `tokens` the first [`TopRows::per_row`] count.
    pub fn push_sorted(&mut self, tokens: impl IntoIterator<Item = TopLogit>) {
        self.tokens.extend(tokens.into_iter().take(self.per_row));
    }

    /// Replaces all rows by those of `logits`, `[rows, vocab_size]`.
    pub fn fill(&mut self, count: usize, vocab_size: usize, logits: &[f32]) {
        self.reset(count, vocab_size);
        logits.chunks_exact(vocab_size.max(1)).for_each(|row| self.push_logits(row));
    }

    /// Adds a row, chosen from its `logits`, one per token of the vocabulary.
    pub fn push_logits(&mut self, logits: &[f32]) {
        self.keys.clear();
        let first = self.tokens.len();
        if self.per_row == 0 {
            return;
        }
        // What is not above it does not count: of equals the lower ids stand there already.
        let mut bar = 0;
        for (id, &logit) in (0u32..).zip(logits) {
            let key = sort_key(logit);
            if key <= bar {
                continue;
            }
            let place = self.keys.partition_point(|other| *other >= key);
            if self.keys.len() == self.per_row {
                self.keys.pop();
                self.tokens.pop();
            }
            self.keys.insert(place, key);
            self.tokens.insert(first + place, TopLogit { id, logit });
            if let Some(&last) = self.keys.get(self.per_row - 1) {
                bar = last;
            }
        }
    }
}

/// An integer above 0 in the order of [`TopRows`].
fn sort_key(logit: f32) -> u32 {
    const SIGN: u32 = 1 << 31;
    let bits = logit.to_bits();
    if logit.is_nan() || logit == f32::INFINITY {
        u32::MAX
    } else if logit == 0.0 {
        SIGN
    } else if bits & SIGN == 0 {
        bits | SIGN
    } else {
        !bits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INF: f32 = f32::INFINITY;

    fn top(count: usize, logits: &[f32]) -> Vec<u32> {
        let mut rows = TopRows::default();
        rows.reset(count, logits.len());
        rows.push_logits(logits);
        assert_eq!((rows.rows(), rows.row(0).len()), (1, count.min(logits.len())));
        let same = |token: &TopLogit| logits[token.id as usize].to_bits() == token.logit.to_bits();
        assert!(rows.row(0).iter().all(same), "logits of other tokens");
        rows.row(0).iter().map(|token| token.id).collect()
    }

    #[test]
    fn rows_by_hand() {
        let cases: [(&str, usize, &[f32], &[u32]); 9] = [
            ("largest first", 3, &[1.0, 4.0, -2.0, 3.0], &[1, 3, 0]),
            ("ties by id", 3, &[2.0, 5.0, 5.0, 5.0, 5.0], &[1, 2, 3]),
            ("a tie at the border", 2, &[1.0, 1.0, 2.0, 1.0], &[2, 0]),
            ("both zeros are equal", 3, &[-0.0, 0.0, -0.0], &[0, 1, 2]),
            ("negative ones, tiny ones", 4, &[-3.0, -1e-45, 1e-45, -1.0], &[2, 1, 3, 0]),
            ("more than there are", 9, &[1.0, 2.0], &[1, 0]),
            ("excluded ones are last", 3, &[-INF, -3e38, -INF], &[1, 0, 2]),
            ("what is no logit is first, by id", 3, &[3.0, INF, f32::NAN, 3e38, -f32::NAN], &[1, 2, 4]),
            ("one token", 1, &[-INF], &[0]),
        ];
        for (what, count, logits, expected) in cases {
            assert_eq!(top(count, logits), expected, "{what}");
        }
    }

    #[test]
    fn selection_equals_a_full_sort() {
        let mut state = 7u32;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8
        };
        for levels in [3, 50, 1 << 24] {
            let logits: Vec<f32> = (0..3000).map(|_| (next() % levels) as f32 - levels as f32 / 2.0).collect();
            let mut sorted: Vec<u32> = (0..3000).collect();
            sorted.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
            for count in [1, 2, 64, 2999] {
                assert_eq!(top(count, &logits), sorted[..count], "{levels} levels, {count}");
            }
        }
    }

    #[test]
    fn several_rows_and_none() {
        let mut rows = TopRows::default();
        assert_eq!((rows.rows(), rows.row(0).len()), (0, 0));
        rows.reset(2, 3);
        rows.push_logits(&[1.0, 2.0, 3.0]);
        let sorted = [(7, 3.0), (1, 2.0), (0, 1.0)].map(|(id, logit)| TopLogit { id, logit });
        rows.push_sorted(sorted);
        assert_eq!((rows.rows(), rows.per_row()), (2, 2));
        assert_eq!(rows.row(1), &sorted[..2]);
        assert_eq!(rows.row(2), &[]);
        rows.reset(2, 3);
        assert_eq!(rows.rows(), 0);
    }
}
