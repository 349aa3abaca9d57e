//! Times that were measured, and what is said of them.

use std::time::Duration;

/// Times of one thing, the shortest first.
#[derive(Clone, Debug, Default)]
pub struct Sample(Vec<Duration>);

impl Sample {
    pub fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The time that so many percent are not above; zero of no times.
    pub fn percentile(&self, percent: usize) -> Duration {
        self.0.get(self.0.len() * percent / 100).or(self.0.last()).copied().unwrap_or_default()
    }

    pub fn median(&self) -> Duration {
        self.percentile(50)
    }

    pub fn slowest(&self) -> Duration {
        self.percentile(100)
    }
}

/// Milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
