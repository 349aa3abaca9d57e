//! What a step's script writes: its end is kept for the result, every line goes to the pod's own log.
//!
//! Holds a bounded amount, however much a script writes and however slowly the pod's log takes it.

use std::{collections::VecDeque, io::Write, time::Duration};
use tokio::{
    io::{AsyncRead, AsyncReadExt},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

/// A longer line is shown in the pod's log as several.
const LINE_LENGTH: usize = 8 * 1024;
/// What is read from a script at once.
const PIECE: usize = 32 * 1024;
/// How many pieces may wait for the pod's log; then the script waits.
const WAITING_PIECES: usize = 16;

/// Where lines go: the pod's log, through a thread of its own, because it may block.
#[derive(Clone)]
pub struct LogSink(mpsc::Sender<Vec<u8>>);

/// Tells when everything given to a sink has been written.
pub struct Written(oneshot::Receiver<()>);

impl LogSink {
    pub fn new(mut log: impl Write + Send + 'static) -> (Self, Written) {
        let (lines, mut incoming) = mpsc::channel::<Vec<u8>>(WAITING_PIECES);
        let (done, written) = oneshot::channel();
        std::thread::spawn(move || {
            while let Some(piece) = incoming.blocking_recv() {
                // A pod's log that is gone is no reason to fail a step.
                let _ = log.write_all(&piece).and_then(|()| log.flush());
            }
            let _ = done.send(());
        });
        (Self(lines), Written(written))
    }

    /// A line of the agent's own.
    pub async fn say(&self, line: &str) {
        let _ = self.0.send(format!("{line}\n").into_bytes()).await;
    }
}

impl Written {
    /// Waits until every clone of the sink is gone and all is written, but no longer than `limit`.
    pub async fn wait(self, limit: Duration) {
        let _ = tokio::time::timeout(limit, self.0).await;
    }
}

/// Reads until `output` ends or `stop` is told. Returns the last `keep` bytes.
pub async fn copy(
    mut output: impl AsyncRead + Unpin,
    step: &str,
    keep: usize,
    sink: &LogSink,
    stop: &CancellationToken,
) -> Tail {
    let mut tail = Tail::new(keep);
    let mut lines = PrefixedLines::new(step);
    let mut piece = vec![0; PIECE];
    loop {
        let read = tokio::select! {
            biased;
            () = stop.cancelled() => break,
            read = output.read(&mut piece) => read,
        };
        let read = match read {
            Ok(0) | Err(_) => break,
            Ok(read) => &piece[..read],
        };
        tail.push(read);
        lines.push(read);
        let ready = lines.take();
        if !ready.is_empty() {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = sink.0.send(ready) => {}
            }
        }
    }
    lines.finish();
    // The log is full of what it did not take in time: the last line is not worth waiting for, the tail has it.
    let _ = sink.0.try_send(lines.take());
    tail
}

/// The last bytes of a stream.
pub struct Tail {
    bytes: VecDeque<u8>,
    limit: usize,
    cut: bool,
}

impl Tail {
    fn new(limit: usize) -> Self {
        Self { bytes: VecDeque::with_capacity(limit), limit, cut: false }
    }

    fn push(&mut self, piece: &[u8]) {
        let kept = &piece[piece.len().saturating_sub(self.limit)..];
        let over = (self.bytes.len() + kept.len()).saturating_sub(self.limit);
        self.cut |= over > 0 || kept.len() < piece.len();
        self.bytes.drain(..over);
        self.bytes.extend(kept);
    }

    /// As text of at most the limit's bytes. What is no UTF-8 is replaced, a character is never cut.
    pub fn into_text(mut self) -> String {
        if self.cut {
            let rest_of_a_character = self.bytes.iter().take(3).take_while(|byte| is_continuation(**byte)).count();
            self.bytes.drain(..rest_of_a_character);
        }
        let mut text = String::from_utf8_lossy(self.bytes.make_contiguous()).into_owned();
        // Replacing makes the text longer.
        let mut start = text.len().saturating_sub(self.limit);
        while !text.is_char_boundary(start) {
            start += 1;
        }
        text.drain(..start);
        text
    }
}

/// Puts the step's name before each line.
struct PrefixedLines {
    prefix: String,
    pending: Vec<u8>,
    ready: Vec<u8>,
}

impl PrefixedLines {
    fn new(step: &str) -> Self {
        Self { prefix: format!("[{step}] "), pending: Vec::new(), ready: Vec::new() }
    }

    fn push(&mut self, piece: &[u8]) {
        for part in piece.split_inclusive(|byte| *byte == b'\n') {
            let text = part.strip_suffix(b"\n").unwrap_or(part);
            self.pending.extend_from_slice(text);
            while self.pending.len() > LINE_LENGTH {
                self.emit(whole_characters(&self.pending[..LINE_LENGTH]));
            }
            if text.len() < part.len() {
                self.emit(self.pending.len());
            }
        }
    }

    fn finish(&mut self) {
        if !self.pending.is_empty() {
            self.emit(self.pending.len());
        }
    }

    /// Makes the first `length` pending bytes a line.
    fn emit(&mut self, length: usize) {
        let line: Vec<u8> = self.pending.drain(..length).collect();
        self.ready.extend_from_slice(self.prefix.as_bytes());
        self.ready.extend_from_slice(String::from_utf8_lossy(&line).as_bytes());
        self.ready.push(b'\n');
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.ready)
    }
}

/// The length of `text` without a character that its end cuts.
fn whole_characters(text: &[u8]) -> usize {
    let tail = &text[text.len().saturating_sub(4)..];
    match tail.iter().rposition(|byte| !is_continuation(*byte)) {
        Some(last) if std::str::from_utf8(&tail[last..]).is_err_and(|error| error.error_len().is_none()) => {
            text.len() - tail.len() + last
        }
        _ => text.len(),
    }
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(limit: usize, pieces: &[&[u8]]) -> String {
        let mut tail = Tail::new(limit);
        pieces.iter().for_each(|piece| tail.push(piece));
        tail.into_text()
    }

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = PrefixedLines::new("s");
        pieces.iter().for_each(|piece| lines.push(piece));
        lines.finish();
        String::from_utf8(lines.take()).unwrap().lines().map(str::to_owned).collect()
    }

    #[test]
    fn the_tail_keeps_the_end() {
        assert_eq!(tail(4, &[b"abc", b"def"]), "cdef");
        assert_eq!(tail(4, &[b"abcdefgh"]), "efgh");
        assert_eq!(tail(4, &[b"ab"]), "ab");
        assert_eq!(tail(4, &[]), "");
    }

    #[test]
    fn the_tail_cuts_no_character_and_stays_within_its_limit() {
        assert_eq!(tail(4, &["aäää".as_bytes()]), "ää");
        assert_eq!(tail(3, &["äää".as_bytes()]), "ä");
        assert_eq!(tail(4, &[b"\xff\xff\xff"]), "\u{fffd}");
        assert_eq!(tail(6, &[b"a\xffb"]), "a\u{fffd}b");
    }

    #[test]
    fn every_line_bears_the_name_of_its_step() {
        assert_eq!(lines(&[b"one\ntw", b"o\n\nthree"]), ["[s] one", "[s] two", "[s] ", "[s] three"]);
        assert_eq!(lines(&[b"\xff\n"]), ["[s] \u{fffd}"]);
    }

    #[test]
    fn a_long_line_becomes_several_between_characters() {
        let long = "ä".repeat(LINE_LENGTH);
        let shown = lines(&[b"x", long.as_bytes(), b"\n"]);
        assert_eq!(shown.len(), 3);
        assert!(shown.iter().all(|line| line.len() <= LINE_LENGTH + 4 && !line.contains('\u{fffd}')));
        assert_eq!(shown.iter().map(|line| line.matches('ä').count()).sum::<usize>(), LINE_LENGTH);
    }
}
