//! Gives memory back to the machine that was needed for a while.
//!
//! A list of tens of thousands of objects takes many times what is kept of them. The C library keeps what was freed
//! between the pieces that stay, for ever, unless it is asked.

use std::time::Duration;

const EVERY: Duration = Duration::from_secs(30);

/// Gives back what is free now and then, for as long as the future is polled.
pub async fn keep_small() {
    loop {
        tokio::time::sleep(EVERY).await;
        // It takes a moment, and somebody may wait for this thread.
        let _ = tokio::task::spawn_blocking(give_back).await;
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
fn give_back() {
    // SAFETY: it may be called at any time, by any thread, and touches nothing that is in use.
    unsafe { libc::malloc_trim(0) };
}

#[cfg(not(all(target_os = "linux", target_env = "gnu")))]
fn give_back() {}
