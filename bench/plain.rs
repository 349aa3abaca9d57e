//! One question over plain HTTP, as etcd and the server's probes take it.

use anyhow::{Context as _, ensure};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// The body of the answer to a request, which must be a good one.
pub async fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> anyhow::Result<String> {
    let what = || format!("{method} http://{address}{path}");
    let mut stream = TcpStream::connect(address).await.with_context(what)?;
    // HTTP/1.0, so that the answer ends with the connection.
    let head = format!("{method} {path} HTTP/1.0\r\nHost: {address}\r\nContent-Length: {}\r\n\r\n", body.len());
    stream.write_all(format!("{head}{body}").as_bytes()).await.with_context(what)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.with_context(what)?;
    let answer = String::from_utf8(answer)?;
    let (head, body) = answer.split_once("\r\n\r\n").with_context(what)?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    ensure!(status == "200", "{}: {head}\n{body}", what());
    Ok(body.to_owned())
}
