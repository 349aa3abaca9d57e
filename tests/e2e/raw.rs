//! The API as a client sees it that tries nothing again, unlike kubectl, and many such clients at once.

use crate::cluster::{OWN_USER, Space, eventually};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// `kubectl proxy`, which sends what it is given once.
pub struct Proxy {
    child: Child,
    address: String,
}

/// What the API server said.
#[derive(Debug)]
pub struct Answer {
    pub code: u16,
    pub body: Value,
    pub took: Duration,
}

impl Answer {
    pub fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    /// For how long the client is told to wait before it comes again.
    pub fn come_again(&self) -> Option<Duration> {
        let seconds = self.body["details"]["retryAfterSeconds"].as_u64()?;
        (self.code == 429).then_some(Duration::from_secs(seconds))
    }
}

impl Proxy {
    pub fn start() -> Self {
        let mut child =
            Command::new("kubectl").args(["proxy", "--port=0"]).stdout(Stdio::piped()).spawn().expect("kubectl");
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().rsplit(' ').next().unwrap().to_owned();
        assert!(address.contains(':'), "kubectl proxy said: {line}");
        Self { child, address }
    }

    /// One request, never sent twice.
    pub fn send(&self, method: &str, path: &str, content: &str, body: &str) -> Answer {
        self.send_with(method, path, &format!("Content-Type: {content}"), body)
    }

    fn send_with(&self, method: &str, path: &str, headers: &str, body: &str) -> Answer {
        let began = Instant::now();
        let mut stream = TcpStream::connect(&self.address).unwrap();
        // HTTP/1.0: the answer comes whole and ends with the connection.
        let request = format!(
            "{method} {path} HTTP/1.0\r\nHost: {}\r\n{headers}\r\nContent-Length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer:?}"));
        let code = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { code, body: serde_json::from_str(body).unwrap_or_default(), took: began.elapsed() }
    }

    /// Creates a sandbox, once. `query` is such as `?timeout=10s`, or nothing.
    pub fn create(&self, space: &Space, manifest: &str, query: &str) -> Answer {
        let path = format!("/apis/sluice.dev/v1alpha1/namespaces/{}/sandboxes{query}", space.namespace);
        self.send("POST", &path, "application/yaml", manifest)
    }

    /// Creates a sandbox as client-go does: comes again when it is told to.
    #[track_caller]
    pub fn create_at_last(&self, space: &Space, manifest: &str) -> Value {
        eventually(Duration::from_secs(240), "the sandbox is created", || {
            let answer = self.create(space, manifest, "");
            if let Some(pause) = answer.come_again() {
                std::thread::sleep(pause);
                return None;
            }
            assert_eq!(answer.code, 201, "{}", answer.message());
            Some(answer.body)
        })
    }

    /// Writes part of a sandbox's status, as Sluice does: nobody else may.
    pub fn patch_status(&self, space: &Space, name: &str, status: &str) -> Answer {
        self.patch_by_status(space, name, &format!("{{\"status\": {status}}}"))
    }

    /// Sends a merge patch to the subresource of a sandbox's status, as Sluice.
    pub fn patch_by_status(&self, space: &Space, name: &str, patch: &str) -> Answer {
        let path = format!("/apis/sluice.dev/v1alpha1/namespaces/{}/sandboxes/{name}/status", space.namespace);
        let headers = format!("Content-Type: application/merge-patch+json\r\nImpersonate-User: {OWN_USER}");
        self.send_with("PATCH", &path, &headers, patch)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Does this with each of these at the same moment.
pub fn all_at_once<T: Sync, R: Send>(each: &[T], act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let barrier = Barrier::new(each.len());
    std::thread::scope(|scope| {
        let one = |what| {
            barrier.wait();
            act(what)
        };
        let threads: Vec<_> = each.iter().map(|what| scope.spawn(move || one(what))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
