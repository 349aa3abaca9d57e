//! Lines of bounded length over a byte stream, and JSON in them. Used by both ends of a connection.

use serde::Serialize;
use std::io;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader};

/// Why no further line comes.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error("a line is longer than {limit} bytes")]
    TooLong { limit: usize },
    #[error(transparent)]
    Read(#[from] io::Error),
}

/// Reads lines. Reading may be given up at any await and begun again: nothing is lost.
pub struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    limit: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub fn new(reader: R, limit: usize) -> Self {
        Self { reader: BufReader::new(reader), line: Vec::new(), limit }
    }

    /// The next line, without its end; `None` at the end of the stream. A line that the end cut off is no line.
    pub async fn next(&mut self) -> Result<Option<Vec<u8>>, LineError> {
        loop {
            let read = self.reader.fill_buf().await?;
            if read.is_empty() {
                return Ok(None);
            }
            let end = read.iter().position(|byte| *byte == b'\n');
            let piece = &read[..end.unwrap_or(read.len())];
            if self.line.len() + piece.len() > self.limit {
                return Err(LineError::TooLong { limit: self.limit });
            }
            self.line.extend_from_slice(piece);
            let used = piece.len() + usize::from(end.is_some());
            self.reader.consume(used);
            if end.is_some() {
                return Ok(Some(std::mem::take(&mut self.line)));
            }
        }
    }
}

/// `message` as one line.
pub fn encode(message: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    Ok(line)
}

/// Writes one line and hands it on at once.
pub async fn write<W: AsyncWrite + Unpin>(writer: &mut W, line: &[u8]) -> io::Result<()> {
    writer.write_all(line).await?;
    writer.flush().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn reads_whole_lines_only() {
        let mut lines = Lines::new(&b"one\n\ntwo\nthr"[..], 3);
        assert_eq!(lines.next().await.unwrap(), Some(b"one".to_vec()));
        assert_eq!(lines.next().await.unwrap(), Some(Vec::new()));
        assert_eq!(lines.next().await.unwrap(), Some(b"two".to_vec()));
        assert_eq!(lines.next().await.unwrap(), None);
    }

    #[tokio::test]
    async fn refuses_a_line_over_the_limit() {
        let mut lines = Lines::new(&b"four\n"[..], 3);
        assert!(matches!(lines.next().await, Err(LineError::TooLong { limit: 3 })));
    }
}
