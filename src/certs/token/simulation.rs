//! The token's life with three replicas, of which each hears late and may be killed at any moment, and two API servers
//! that hear late: at no moment does one of them call a replica by a token that this one does not accept.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use proptest::prelude::*;

use super::accept::{Accepted, LINGER};
use super::rotate::{Action, LIFETIME, due, next};
use super::{Token, Tokens};
use crate::certs::rotate::{PROPAGATION, RELOAD_GRACE, Registration};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const REPLICAS: usize = 3;
const API_SERVERS: usize = 2;

fn said(token: &Token) -> String {
    token.path("")[1..].to_owned()
}

struct World {
    now: Timestamp,
    secret: Option<Tokens>,
    /// What the configurations name, the validating and the mutating one.
    registered: Option<[Token; 2]>,
    replicas: Vec<(Arc<Accepted>, Timestamp)>,
    api_servers: Vec<(Option<[Token; 2]>, Timestamp)>,
    leader: usize,
    seen: Registration,
    looked: Timestamp,
    history: Vec<Action>,
}

/// What may happen next.
#[derive(Debug, Clone, Copy)]
enum Event {
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
    /// Time, in seconds.
    Pass(u64),
}

impl World {
    fn new() -> Self {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        let tokens = Tokens::first(&[], now);
        let replica = || (Accepted::new(tokens.clone(), &Registration::Absent, now), now);
        Self {
            now,
            registered: None,
            replicas: (0..REPLICAS).map(|_| replica()).collect(),
            api_servers: vec![(None, now); API_SERVERS],
            leader: 0,
            seen: Registration::Unknown,
            looked: now,
            history: Vec::new(),
            secret: Some(tokens),
        }
    }

    fn look(&self) -> Registration {
        let Some([validating, mutating]) = &self.registered else { return Registration::Absent };
        let mut named = vec![validating.clone(), mutating.clone()];
        named.dedup();
        let since = match &self.seen {
            Registration::Trusting { named: old, since, .. } if *old == named => *since,
            _ => self.now,
        };
        Registration::Trusting { authorities: Vec::new(), named, since, complete: true }
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Read(replica) => {
                if let Some(tokens) = &self.secret {
                    self.replicas[replica].0.offer(tokens.clone(), self.now);
                    self.replicas[replica].1 = self.now;
                }
            }
            Event::Hear(server) => self.api_servers[server] = (self.registered.clone(), self.now),
            Event::Register { whole } => {
                self.happen(Event::Read(self.leader));
                self.looked = self.now;
                if self.secret.is_none() && self.registered.is_some() {
                    // What the leader remembers may be older than what is named.
                    self.seen = self.look();
                    return;
                }
                let current = self.replicas[self.leader].0.known().borrow().current.clone();
                let mutating = self.registered.as_ref().map(|[_, mutating]| mutating.clone());
                let second = mutating.filter(|_| !whole).unwrap_or_else(|| current.clone());
                self.registered = Some([current, second]);
                self.seen = self.look();
            }
            Event::Step => {
                let remembered = self.replicas[self.leader].0.known().borrow().clone();
                let (action, tokens) = due(self.secret.as_ref(), &remembered, &self.seen, self.now);
                if action != Action::Keep {
                    // Written and read back, as through the real Secret.
                    self.secret = Some(Tokens::read(&tokens.data()).unwrap());
                    self.history.push(action);
                }
            }
            Event::Elect(replica) => (self.leader, self.seen) = (replica, Registration::Unknown),
            Event::Restart(replica) => {
                // The leader's watch tells it at once of a Secret that is gone.
                if self.secret.is_none() {
                    self.happen(Event::Step);
                }
                let seen = self.look();
                if let Some(tokens) = &self.secret {
                    self.replicas[replica] = (Accepted::new(tokens.clone(), &seen, self.now), self.now);
                }
                if replica == self.leader {
                    self.happen(Event::Elect((replica + 1) % REPLICAS));
                }
            }
            Event::Delete => self.secret = None,
            Event::Pass(seconds) => {
                for _ in 0..seconds.div_ceil(10) {
                    self.now += 10 * SECOND;
                    self.bounds();
                }
            }
        }
        self.check(event);
    }

    /// Nobody is later than is allowed for.
    fn bounds(&mut self) {
        if self.now >= self.looked + 5 * MINUTE {
            self.happen(Event::Register { whole: true });
        }
        for replica in 0..REPLICAS {
            if self.now >= self.replicas[replica].1 + RELOAD_GRACE - MINUTE {
                self.happen(Event::Read(replica));
            }
        }
        for server in 0..API_SERVERS {
            if self.now >= self.api_servers[server].1 + PROPAGATION - 10 * SECOND {
                self.happen(Event::Hear(server));
            }
        }
    }

    fn check(&self, event: Event) {
        for (named, _) in &self.api_servers {
            for token in named.iter().flatten() {
                for (number, (accepted, _)) in self.replicas.iter().enumerate() {
                    let lets_in = accepted.accepts(&said(token), self.now);
                    assert!(
                        lets_in,
                        "replica {number} refuses a call at {} after {event:?}, {:?}",
                        self.now, self.history
                    );
                }
            }
        }
    }
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
        6 => (10_u64..1500).prop_map(Event::Pass),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn in_whatever_order_things_happen_no_call_is_refused(events in prop::collection::vec(event(), 1..200)) {
        let mut world = World::new();
        for event in events {
            world.happen(event);
        }
    }
}

/// All do what they do every ten seconds.
fn run(world: &mut World, span: Duration) {
    let end = world.now + span;
    while world.now < end {
        for event in [Event::Register { whole: true }, Event::Step, Event::Pass(10)] {
            world.happen(event);
        }
        (0..REPLICAS).for_each(|replica| world.happen(Event::Read(replica)));
    }
}

#[test]
fn a_token_is_used_for_little_more_than_its_lifetime_and_then_no_longer_accepted() {
    let mut world = World::new();
    let first = world.secret.clone().unwrap().current;
    run(&mut world, LIFETIME + RELOAD_GRACE + 2 * PROPAGATION);
    assert_eq!(world.history, [Action::Append, Action::Name, Action::Retire]);
    assert_ne!(world.registered.as_ref().unwrap()[0], first);
    run(&mut world, LINGER);
    for (accepted, _) in &world.replicas {
        assert!(!accepted.accepts(&said(&first), world.now));
    }
    run(&mut world, 24 * LIFETIME);
    assert!(world.history.len() >= 3 * 19, "it goes on: {:?}", world.history);
}

#[test]
fn a_deleted_secret_becomes_a_rotation_in_order() {
    let mut world = World::new();
    run(&mut world, 5 * MINUTE);
    let first = world.secret.clone().unwrap().current;
    world.happen(Event::Delete);
    run(&mut world, 20 * MINUTE);
    assert_eq!(world.history, [Action::Append, Action::Name, Action::Retire]);
    assert!(!world.secret.unwrap().accepted.contains(&first));
}

#[test]
fn a_secret_that_is_gone_when_all_start_keeps_what_the_webhooks_name() {
    let mut world = World::new();
    run(&mut world, 5 * MINUTE);
    world.secret = Some(Tokens::first(world.look().named(), world.now));
    (0..REPLICAS).for_each(|replica| world.happen(Event::Restart(replica)));
    run(&mut world, 20 * MINUTE);
    assert_eq!(world.history, [Action::Name, Action::Retire]);
}

#[test]
fn a_leader_that_heard_late_names_no_token_that_the_others_have_forgotten() {
    let mut world = World::new();
    let begin = [Event::Delete, Event::Register { whole: false }, Event::Step];
    let rotate = [Event::Pass(1071), Event::Step, Event::Pass(171), Event::Step, Event::Register { whole: false }];
    let elect = [Event::Delete, Event::Elect(1), Event::Pass(10), Event::Pass(581)];
    begin.into_iter().chain(rotate).chain(elect).for_each(|event| world.happen(event));
    assert_eq!(world.history, [Action::Append, Action::Name, Action::Retire]);
}

#[test]
fn nothing_is_retired_before_anybody_has_looked_or_while_one_webhook_names_another() {
    let mut world = World::new();
    run(&mut world, LIFETIME + MINUTE);
    assert_eq!(world.history, [Action::Append]);
    let (old, mut tokens) = (world.registered.clone().unwrap()[0].clone(), world.secret.unwrap());
    tokens.current = tokens.accepted[1].clone();
    let much_later = world.now + LIFETIME;
    assert_eq!(next(&tokens, &Registration::Unknown, much_later), Action::Keep);
    let naming = |named: &[&Token]| {
        let named = named.iter().map(|token| (*token).clone()).collect();
        Registration::Trusting { authorities: Vec::new(), named, since: world.now, complete: true }
    };
    assert_eq!(next(&tokens, &naming(&[&tokens.current, &old]), much_later), Action::Keep);
    assert_eq!(next(&tokens, &naming(&[&tokens.current]), much_later), Action::Retire);
}
