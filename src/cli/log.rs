//! Where the log goes: one event a line, whatever is in it.

use crate::plan::shown;
use std::io::{self, Write};

/// A writer of events, each given at once, in which control characters are shown.
pub struct Shown<W> {
    out: W,
    /// Whether events are JSON.
    is_json: bool,
}

impl<W> Shown<W> {
    pub fn new(out: W, is_json: bool) -> Self {
        Self { out, is_json }
    }
}

impl<W: Write> Write for Shown<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let (line, end) = text.strip_suffix('\n').map_or((&*text, ""), |line| (line, "\n"));
        let line = if self.is_json { shown::json(line) } else { shown::line(line) };
        self.out.write_all(format!("{line}{end}").as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Out(Arc<Mutex<Vec<u8>>>);

    impl Write for Out {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(is_json: bool) -> String {
        let out = Out::default();
        let writer = out.clone();
        let logs = tracing_subscriber::fmt().with_writer(move || Shown::new(writer.clone(), is_json)).with_ansi(false);
        let say = || tracing::info!(reason = %"a\u{1b}[31m\u{9b}\n2026 INFO forged \u{202e}", "said \r{}", "\u{7f}");
        if is_json {
            tracing::subscriber::with_default(logs.json().finish(), say);
        } else {
            tracing::subscriber::with_default(logs.finish(), say);
        }
        String::from_utf8(out.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn t12_an_event_of_the_log_is_one_line_without_control_characters() {
        for is_json in [false, true] {
            let line = logged(is_json);
            assert_eq!(line.matches('\n').count(), 1, "{line:?}");
            assert!(line.trim_end().is_ascii() && !line.trim_end().contains(char::is_control), "{line:?}");
            if is_json {
                let event: serde_json::Value = serde_json::from_str(&line).unwrap();
                assert_eq!(event["fields"]["reason"], "a\u{1b}[31m\u{9b}\n2026 INFO forged \u{202e}");
            }
        }
    }
}
