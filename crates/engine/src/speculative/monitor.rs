//! Whether guessing ahead pays: time per token with and without it.

use std::time::Duration;

/// Plain steps that are timed before the first guess.
const PLAIN_FIRST: usize = 2;
/// Rounds with guesses before they are judged.
const TRIAL: usize = 8;
/// Rounds with guesses after which a plain step is timed again: steps become slower as the context grows.
const REFRESH: usize = 64;
/// Tokens without guesses after a lost trial; doubled by every further one.
const FIRST_PAUSE: usize = 32;
/// Longest pause.
const LONGEST_PAUSE: usize = 1024;
/// Share of the newest value in a mean.
const WEIGHT: f64 = 0.2;

/// Exponentially weighted time and tokens of a kind of round.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    rounds: usize,
    seconds: f64,
    tokens: f64,
}

impl Pace {
    fn add(&mut self, time: Duration, tokens: usize) {
        let weight = if self.rounds == 0 { 1.0 } else { WEIGHT };
        self.rounds += 1;
        self.seconds += weight * (time.as_secs_f64() - self.seconds);
        self.tokens += weight * (tokens as f64 - self.tokens);
    }

    fn seconds_per_token(&self) -> f64 {
        self.seconds / self.tokens.max(1e-9)
    }
}

/// Decides before each round whether it may guess.
#[derive(Debug)]
pub(super) struct Monitor {
    /// Without it every round may guess.
    active: bool,
    plain: Pace,
    guessing: Pace,
    since_plain: usize,
    /// Rounds left of a pause.
    pause: usize,
    next_pause: usize,
}

impl Monitor {
    pub(super) fn new(active: bool) -> Self {
        let (plain, guessing) = (Pace::default(), Pace::default());
        Self { active, plain, guessing, since_plain: 0, pause: 0, next_pause: FIRST_PAUSE }
    }

    /// Whether the next round may guess. Called once per round.
    pub(super) fn may_guess(&mut self) -> bool {
        if !self.active {
            return true;
        }
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        if self.plain.rounds < PLAIN_FIRST || self.since_plain >= REFRESH {
            return false;
        }
        if self.guessing.rounds < TRIAL {
            return true;
        }
        if self.guessing.seconds_per_token() > self.plain.seconds_per_token() {
            self.pause = self.next_pause - 1;
            self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
            self.guessing = Pace::default();
            return false;
        }
        self.next_pause = FIRST_PAUSE;
        true
    }

    /// A step that gave one token.
    pub(super) fn plain(&mut self, time: Duration) {
        self.since_plain = 0;
        self.plain.add(time, 1);
    }

    /// A round with guesses that gave `tokens` tokens.
    pub(super) fn guessed(&mut self, time: Duration, tokens: usize) {
        self.since_plain += 1;
        self.guessing.add(time, tokens);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(10);

    /// Runs `rounds` rounds in which a guess takes `time` and gives `tokens`; which of them guessed.
    fn simulate(monitor: &mut Monitor, rounds: usize, time: Duration, tokens: usize) -> Vec<bool> {
        let round = |_| {
            let guess = monitor.may_guess();
            if guess {
                monitor.guessed(time, tokens)
            } else {
                monitor.plain(STEP)
            }
            guess
        };
        (0..rounds).map(round).collect()
    }

    #[test]
    fn goes_on_while_it_pays_and_times_a_plain_step_now_and_then() {
        let rounds = simulate(&mut Monitor::new(true), PLAIN_FIRST + 2 * (REFRESH + 1), 2 * STEP, 3);
        let plain: Vec<usize> = (0..rounds.len()).filter(|&i| !rounds[i]).collect();
        assert_eq!(plain, [0, 1, PLAIN_FIRST + REFRESH, PLAIN_FIRST + 2 * REFRESH + 1]);
    }

    #[test]
    fn pauses_longer_and_longer_while_it_loses() {
        let rounds = simulate(&mut Monitor::new(true), 400, 2 * STEP, 1);
        let lengths: Vec<usize> = rounds.chunk_by(|a, b| a == b).map(<[bool]>::len).collect();
        assert_eq!(lengths[..6], [PLAIN_FIRST, TRIAL, FIRST_PAUSE, TRIAL, 2 * FIRST_PAUSE, TRIAL]);
    }

    #[test]
    fn a_won_trial_forgives_the_lost_ones() {
        let mut monitor = Monitor::new(true);
        let lost = PLAIN_FIRST + TRIAL + FIRST_PAUSE;
        simulate(&mut monitor, lost, 2 * STEP, 1);
        assert!(simulate(&mut monitor, TRIAL + 20, 2 * STEP, 4).iter().all(|guess| *guess));
        let rounds = simulate(&mut monitor, 200, 9 * STEP, 1);
        let pause = rounds.chunk_by(|a, b| a == b).find(|run| !run[0]).map(<[bool]>::len);
        assert_eq!(pause, Some(FIRST_PAUSE));
    }

    #[test]
    fn an_inactive_one_never_says_no() {
        assert!(simulate(&mut Monitor::new(false), 200, 9 * STEP, 1).iter().all(|guess| *guess));
    }
}
