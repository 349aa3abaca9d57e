//! What happens to objects while a test goes on, in the order of the API server's own record.

use crate::cluster::eventually;
use serde_json::Value;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Everything that happens to the objects of some kinds while it lives, in the order of the API server.
pub struct Watch {
    children: Vec<Child>,
    events: Arc<Mutex<Vec<Event>>>,
}

/// One change of one object.
#[derive(Clone, Debug)]
pub struct Event {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub kind: String,
    pub object: Value,
    /// One counter counts the changes of all kinds.
    pub version: u64,
}

impl Watch {
    /// Watches these kinds (with `-n NAMESPACE` or not, as kubectl takes it); returns when it sees what is there.
    pub fn new(kinds: &[&[&str]]) -> Self {
        let events: Arc<Mutex<Vec<Event>>> = Arc::default();
        let children = kinds
            .iter()
            .map(|kind| {
                let mut child = Command::new("kubectl")
                    .arg("get")
                    .args(*kind)
                    .args(["--watch", "--output-watch-events", "-o", "json"])
                    .stdout(Stdio::piped())
                    .stderr(Stdio::null())
                    .spawn()
                    .unwrap();
                let (stdout, events) = (child.stdout.take().unwrap(), events.clone());
                std::thread::spawn(move || {
                    let stream = serde_json::Deserializer::from_reader(stdout).into_iter::<Value>();
                    for event in stream.map_while(Result::ok) {
                        let object = event["object"].clone();
                        let version = object["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok());
                        let kind = event["type"].as_str().unwrap_or_default().to_owned();
                        events.lock().unwrap().push(Event { kind, object, version: version.unwrap_or_default() });
                    }
                });
                child
            })
            .collect();
        // A watch begins some moments after kubectl does; what is there by then comes first, as ADDED.
        std::thread::sleep(Duration::from_secs(2));
        Self { children, events }
    }

    /// The version at which the first change happened that matches; waits for it.
    #[track_caller]
    pub fn version(&self, what: &str, matches: impl Fn(&Event) -> bool) -> u64 {
        eventually(Duration::from_secs(60), what, || {
            self.events.lock().unwrap().iter().filter(|event| matches(event)).map(|event| event.version).min()
        })
    }
}

impl Watch {
    /// What has happened so far that matches.
    pub fn seen(&self, matches: impl Fn(&Event) -> bool) -> Vec<Event> {
        self.events.lock().unwrap().iter().filter(|event| matches(event)).cloned().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
