//! Which tests run beside which: most beside one another, some alone, and some together with three replicas.

use crate::server::Scaled;
use std::sync::{Condvar, Mutex, PoisonError};

/// What a test needs of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Nothing.
    Beside,
    /// That there are none.
    Alone,
    /// That they, too, want three replicas.
    Three,
}

struct Now {
    mode: Mode,
    tests: usize,
    /// For as long as any test wants it.
    three: Option<Scaled>,
}

static NOW: Mutex<Now> = Mutex::new(Now { mode: Mode::Beside, tests: 0, three: None });
static CHANGED: Condvar = Condvar::new();

/// A test's turn, until it is dropped.
pub struct Turn(());

impl Turn {
    /// Waits until no other test is in the way.
    pub fn take(mode: Mode) -> Self {
        let now = NOW.lock().unwrap_or_else(PoisonError::into_inner);
        let in_the_way = |now: &mut Now| now.tests > 0 && (now.mode != mode || mode == Mode::Alone);
        let mut now = CHANGED.wait_while(now, in_the_way).unwrap_or_else(PoisonError::into_inner);
        if mode == Mode::Three && now.three.is_none() {
            now.three = Some(Scaled::to(3));
        }
        now.mode = mode;
        now.tests += 1;
        Self(())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut now = NOW.lock().unwrap_or_else(PoisonError::into_inner);
        now.tests -= 1;
        if now.tests == 0 {
            now.three = None;
        }
        CHANGED.notify_all();
    }
}
