//! The token's life with three replicas, of which each hears late, stands still or is killed at any moment, with two API
//! servers that hear late, and with tokens that may be seen at any moment: never does an API server call a replica by a
//! token that this one does not accept, and what was seen is refused by all within a minute.
//!
//! A replica may hear of the Secret as late as it likes, for it reads it before it refuses what it does not know. An API
//! server hears of the configurations within [`HEARD_WITHIN`], as it is taken for granted.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::accept::{Accepted, Verdict};
use super::keep::LOOK;
use super::rotate::{Action, HEARD_WITHIN, PAUSE, Replacement, Sighting, due, replace};
use super::{Token, Tokens};
use crate::certs::rotate::Registration;

pub const SECOND: Duration = Duration::from_secs(1);
pub const MINUTE: Duration = Duration::from_secs(60);
pub const REPLICAS: usize = 3;
pub const API_SERVERS: usize = 2;

fn said(token: &Token) -> String {
    token.path("")[1..].to_owned()
}

pub struct World {
    pub now: Timestamp,
    pub secret: Option<Tokens>,
    /// What the configurations name, the validating and the mutating one.
    pub registered: Option<[Token; 2]>,
    pub replicas: Vec<Replica>,
    pub api_servers: Vec<(Option<[Token; 2]>, Timestamp)>,
    pub leader: usize,
    seen: Registration,
    sighting: Sighting,
    looked: Timestamp,
    pub history: Vec<Action>,
    /// When successors were made because a token had been seen.
    pub replaced: Vec<Timestamp>,
    /// Whether each replica hears of the Secret by its next look, or as late as it likes.
    prompt: bool,
}

pub struct Replica {
    accepted: Arc<Accepted>,
    /// What it has noted as seen and not replaced yet.
    noted: Vec<(Token, Timestamp)>,
    /// When it last read the Secret.
    heard: Timestamp,
    /// It does nothing from then until then.
    pub still: (Timestamp, Timestamp),
}

impl Replica {
    fn start(tokens: Tokens, seen: &Registration, now: Timestamp) -> Self {
        let noted = seen.named().iter().chain([&tokens.current]).map(|token| (token.clone(), now)).collect();
        Self { accepted: Accepted::new(tokens, seen, now), noted, heard: now, still: (now, now) }
    }
}

/// What may happen next.
#[derive(Debug, Clone, Copy)]
pub enum Event {
    /// A replica reads the Secret.
    Read(usize),
    /// An API server reads the configurations.
    Hear(usize),
    /// The leader looks at the configurations and writes what it wants there: both, or dies after the first.
    Register { whole: bool },
    /// The leader takes the step that is due in the Secret.
    Step,
    /// Another one leads.
    Elect(usize),
    /// A replica is killed and starts again.
    Restart(usize),
    /// Somebody deletes the Secret.
    Delete,
    /// A call to a replica, by what an API server knows, goes wrong.
    Expose(usize, usize),
    /// A replica replaces what it noted.
    Replace(usize),
    /// A replica stands still, for seconds.
    Still(usize, u64),
    /// Time, in seconds.
    Pass(u64),
}

impl World {
    pub fn new() -> Self {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        let tokens = Tokens::first(&[], now);
        let replica = || Replica { noted: Vec::new(), ..Replica::start(tokens.clone(), &Registration::Absent, now) };
        Self {
            now,
            registered: None,
            replicas: (0..REPLICAS).map(|_| replica()).collect(),
            api_servers: vec![(None, now); API_SERVERS],
            leader: 0,
            seen: Registration::Unknown,
            sighting: Sighting::default(),
            looked: now,
            history: Vec::new(),
            replaced: Vec::new(),
            prompt: false,
            secret: Some(tokens),
        }
    }

    pub fn look(&self) -> Registration {
        let Some([validating, mutating]) = &self.registered else { return Registration::Absent };
        let mut named = vec![validating.clone(), mutating.clone()];
        named.dedup();
        let since = match &self.seen {
            Registration::Trusting { named: old, named_since, .. } if *old == named => *named_since,
            _ => self.now,
        };
        naming(named, since)
    }

    pub fn stands_still(&self, replica: usize) -> bool {
        self.now < self.replicas[replica].still.1
    }

    fn read(&mut self, replica: usize) {
        if let Some(tokens) = &self.secret {
            self.replicas[replica].accepted.offer(tokens.clone(), self.now);
            self.replicas[replica].accepted.was_read(self.now);
            self.replicas[replica].heard = self.now;
        }
    }

    /// Whether a caller with `token` is let in, as [`Accepted::lets_in`] does it.
    pub fn lets_in(&self, replica: &Replica, token: &Token) -> bool {
        match replica.accepted.judge(&said(token), self.now) {
            Verdict::LetIn => true,
            Verdict::Refuse => false,
            Verdict::ReadFirst { known } => match &self.secret {
                // What lingers is let in by nobody who reads now and has not known it.
                Some(tokens) => tokens.accepted.contains(token) || (known && !tokens.retired.contains(token)),
                None => known,
            },
        }
    }

    pub fn happen(&mut self, event: Event) {
        match event {
            Event::Read(replica) => self.read(replica),
            Event::Hear(server) => self.api_servers[server] = (self.registered.clone(), self.now),
            Event::Register { whole } => {
                self.read(self.leader);
                self.looked = self.now;
                if self.secret.is_none() && self.registered.is_some() {
                    // What the leader remembers may be older than what is named.
                    self.seen = self.look();
                    return;
                }
                let current = self.replicas[self.leader].accepted.known().borrow().current.clone();
                let mutating = self.registered.as_ref().map(|[_, mutating]| mutating.clone());
                let second = mutating.filter(|_| !whole).unwrap_or_else(|| current.clone());
                self.registered = Some([current, second]);
                self.seen = self.look();
            }
            Event::Step => {
                let remembered = self.replicas[self.leader].accepted.known().borrow().clone();
                let (action, tokens) = due(self.secret.as_ref(), &remembered, &mut self.sighting, &self.seen, self.now);
                if action != Action::Keep {
                    // Written and read back, as through the real Secret.
                    self.secret = Some(Tokens::read(&tokens.data()).unwrap());
                    self.history.push(action);
                }
            }
            Event::Elect(replica) => {
                (self.leader, self.seen, self.sighting) = (replica, Registration::Unknown, Sighting::default());
            }
            Event::Restart(replica) => {
                // The leader's watch tells it at once of a Secret that is gone.
                if self.secret.is_none() {
                    self.happen(Event::Step);
                }
                let seen = self.look();
                if let Some(tokens) = &self.secret {
                    self.replicas[replica] = Replica::start(tokens.clone(), &seen, self.now);
                }
                if replica == self.leader {
                    self.happen(Event::Elect((replica + 1) % REPLICAS));
                }
            }
            Event::Delete => self.secret = None,
            Event::Expose(server, replica) => {
                let named = self.api_servers[server].0.clone();
                let noted = named.into_iter().flatten().map(|token| (token, self.now));
                self.replicas[replica].noted.extend(noted);
            }
            Event::Replace(replica) => self.replace(replica),
            Event::Still(replica, seconds) => {
                self.replicas[replica].still = (self.now, self.now + Duration::from_secs(seconds));
            }
            Event::Pass(seconds) => {
                for _ in 0..seconds.div_ceil(5) {
                    self.now += 5 * SECOND;
                    self.bounds();
                }
            }
        }
        self.check(event);
    }

    fn replace(&mut self, replica: usize) {
        let noted = self.replicas[replica].noted.clone();
        let (Some(tokens), Some((_, since))) = (&self.secret, noted.first()) else { return };
        let seen: Vec<Token> = noted.iter().map(|(token, _)| token.clone()).collect();
        match replace(tokens, &seen, *since, self.now) {
            Replacement::OnItsWay => self.replicas[replica].noted.clear(),
            Replacement::After(wait) => assert!(wait <= PAUSE),
            Replacement::Due(tokens) => {
                self.secret = Some(Tokens::read(&tokens.data()).unwrap());
                self.replaced.push(self.now);
            }
        }
    }

    /// Nobody is later than is taken for granted.
    pub fn bounds(&mut self) {
        if self.now >= self.looked + 5 * MINUTE {
            self.happen(Event::Register { whole: true });
        }
        for replica in 0..REPLICAS {
            if self.prompt && self.now + 5 * SECOND >= self.replicas[replica].heard + LOOK {
                self.read(replica);
            }
        }
        for server in 0..API_SERVERS {
            if self.now >= self.api_servers[server].1 + HEARD_WITHIN - 5 * SECOND {
                self.happen(Event::Hear(server));
            }
        }
    }

    fn check(&self, event: Event) {
        for (named, _) in &self.api_servers {
            for token in named.iter().flatten() {
                for (number, replica) in self.replicas.iter().enumerate() {
                    assert!(
                        self.lets_in(replica, token),
                        "replica {number} refuses a call at {} after {event:?}, {:?}",
                        self.now,
                        self.history
                    );
                }
            }
        }
    }
}

pub fn naming(named: Vec<Token>, since: Timestamp) -> Registration {
    Registration::Trusting { authorities: Vec::new(), named, since, named_since: since, complete: true }
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (0..REPLICAS).prop_map(Event::Read),
        6 => (0..API_SERVERS).prop_map(Event::Hear),
        6 => prop::bool::weighted(0.8).prop_map(|whole| Event::Register { whole }),
        8 => Just(Event::Step),
        2 => (0..REPLICAS).prop_map(Event::Elect),
        2 => (0..REPLICAS).prop_map(Event::Restart),
        1 => Just(Event::Delete),
        3 => (0..API_SERVERS, 0..REPLICAS).prop_map(|(server, replica)| Event::Expose(server, replica)),
        4 => (0..REPLICAS).prop_map(Event::Replace),
        8 => (5_u64..40).prop_map(Event::Pass),
        2 => (10_u64..1500).prop_map(Event::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_whatever_order_things_happen_no_call_is_refused(events in prop::collection::vec(event(), 1..200)) {
        // A Secret that is gone cannot be read by who is late.
        let mut world = World { prompt: true, ..World::new() };
        events.into_iter().for_each(|event| world.happen(event));
    }

    #[test]
    fn however_late_replicas_hear_no_call_is_refused(events in prop::collection::vec(event(), 1..200)) {
        let mut world = World::new();
        let kept = events.into_iter().filter(|event| !matches!(event, Event::Delete));
        kept.for_each(|event| world.happen(event));
    }
}
