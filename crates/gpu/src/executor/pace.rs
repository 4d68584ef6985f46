//! How much goes into a submission of a long step: little enough for driver watchdogs, which reset a device that is busy
//! with one for about two seconds, and enough that encoding keeps ahead of the device.

use std::time::{Duration, Instant};

use crate::{Gpu, GpuError};

/// Most dispatches of a submission: the device works on one while the next is encoded.
pub(super) const MOST: usize = 64;

/// Dispatches of the first submission on a device of which nothing is known.
const FIRST: usize = 8;

/// What a submission may take.
const LONGEST: Duration = Duration::from_millis(500);

/// Dispatches per submission, learned from how long the device needs for them.
pub(super) struct Pace {
    together: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Self { together: FIRST }
    }
}

impl Pace {
    /// Dispatches of the next submission.
    pub(super) fn together(&self) -> usize {
        self.together
    }

    /// What the device needed for a submission.
    fn learn(&mut self, time: Duration) {
        if time > LONGEST {
            self.together = (self.together / 2).max(1);
        } else if time < LONGEST / 4 {
            self.together = (self.together * 2).min(MOST);
        }
    }
}

/// The submissions of one step that the device has not finished: one that it works on, and one that waits.
pub(super) struct Queued {
    waiting: Option<(wgpu::SubmissionIndex, Instant)>,
    last_done: Instant,
}

impl Queued {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self { waiting: None, last_done: Instant::now() }
    }

    /// Adds a submission, and waits for the one before it, so that the device always has work and never more than two.
    pub(super) fn push(
        &mut self,
        gpu: &Gpu,
        pace: &mut Pace,
        submitted: wgpu::SubmissionIndex,
    ) -> Result<(), GpuError> {
        if let Some((before, since)) = self.waiting.replace((submitted, Instant::now())) {
            gpu.wait_until(before)?;
            let now = Instant::now();
            pace.learn(now - since.max(self.last_done));
            self.last_done = now;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn submissions_grow_while_they_are_short_and_shrink_when_they_are_long() {
        let mut pace = Pace::default();
        let after = |pace: &mut Pace, millis: &[u64]| {
            millis.iter().for_each(|&millis| pace.learn(Duration::from_millis(millis)));
            pace.together()
        };
        assert_eq!(pace.together(), 8);
        assert_eq!(after(&mut pace, &[1, 1]), 32);
        assert_eq!(after(&mut pace, &[1, 1, 1]), 64);
        assert_eq!(after(&mut pace, &[300]), 64, "long enough");
        assert_eq!(after(&mut pace, &[600, 3000]), 16);
        assert_eq!(after(&mut pace, &[900; 9]), 1);
    }
}
