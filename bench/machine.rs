//! Whether anything but what is measured is at work on this machine.

use anyhow::Context as _;
use std::time::{Duration, Instant};

const LOOK: Duration = Duration::from_secs(3);
/// So much of its time the machine must do nothing.
const IDLE: f64 = 0.9;
const QUIET_WITHIN: Duration = Duration::from_secs(180);

/// Waits until the machine has little to do: an API server that was given much tidies up for a while.
pub async fn quiet() -> anyhow::Result<()> {
    let since = Instant::now();
    let mut before = processor_time()?;
    loop {
        tokio::time::sleep(LOOK).await;
        let now = processor_time()?;
        let idle = (now.idle - before.idle) as f64 / (now.all - before.all).max(1) as f64;
        if idle >= IDLE {
            return Ok(());
        }
        if since.elapsed() > QUIET_WITHIN {
            eprintln!("bench: the machine is still busy, so the times that follow may be too long");
            return Ok(());
        }
        before = now;
    }
}

struct Time {
    idle: u64,
    all: u64,
}

fn processor_time() -> anyhow::Result<Time> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let line = stat.lines().next().and_then(|line| line.strip_prefix("cpu ")).context("/proc/stat")?;
    let times: Vec<u64> = line.split_whitespace().take(8).filter_map(|time| time.parse().ok()).collect();
    // user, nice, system, idle, iowait …
    let idle = times.get(3).context("/proc/stat")? + times.get(4).unwrap_or(&0);
    Ok(Time { idle, all: times.iter().sum() })
}
