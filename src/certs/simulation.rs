//! The certificate's life over simulated years: at no moment does any replica serve a leaf that the webhook
//! configurations do not trust.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::CertificateDer;

use super::issue::Names;
use super::rotate::{Action, Registration, complete, next, perform};
use super::state::{CA_CRT, CA_KEY, Leaf, State, TLS_CRT, TLS_KEY};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// A Secret, webhook configurations that follow it late, and replicas that reload it late.
struct World {
    now: Timestamp,
    names: Names,
    secret: State,
    registered: Option<(Vec<CertificateDer<'static>>, Timestamp)>,
    replicas: Vec<(Duration, Leaf)>,
    written: Timestamp,
    registration_lag: Duration,
    history: Vec<Action>,
}

fn names() -> Names {
    Names { service: "sluice".into(), namespace: "sluice-system".into() }
}

fn certificates(state: &State) -> Vec<CertificateDer<'static>> {
    state.authorities.iter().map(|authority| authority.certificate.clone()).collect()
}

impl World {
    fn new() -> Self {
        let now: Timestamp = "2026-11-30T12:00:00Z".parse().unwrap();
        let secret = perform(Action::IssueAnew, &State::default(), &Registration::Absent, &names(), now).unwrap();
        let leaf = secret.leaf.clone().unwrap();
        Self {
            now,
            names: names(),
            registered: Some((certificates(&secret), now)),
            replicas: vec![(Duration::ZERO, leaf.clone()), (MINUTE, leaf.clone()), (9 * MINUTE, leaf)],
            secret,
            written: now,
            registration_lag: 3 * MINUTE,
            history: Vec::new(),
        }
    }

    fn registration(&self) -> Registration {
        match &self.registered {
            None => Registration::Unknown,
            Some((authorities, since)) => Registration::Trusting {
                authorities: authorities.clone(),
                named: Vec::new(),
                since: *since,
                named_since: *since,
                complete: true,
            },
        }
    }

    fn tick(&mut self, step: Duration) -> Action {
        self.now += step;
        let action = next(&self.secret, &self.registration(), &self.names, self.now);
        if action != Action::Keep {
            // Written and read back, as through the real Secret.
            let after = perform(action, &self.secret, &self.registration(), &self.names, self.now).unwrap();
            self.secret = State::read(&after.data());
            self.written = self.now;
            self.history.push(action);
        }
        self.follow();
        self.check();
        action
    }

    fn follow(&mut self) {
        if let Some((trusted, since)) = &mut self.registered
            && self.now >= self.written + self.registration_lag
            && *trusted != certificates(&self.secret)
        {
            (*trusted, *since) = (certificates(&self.secret), self.now);
        }
        for (lag, serving) in &mut self.replicas {
            if self.now >= self.written + *lag {
                serving.clone_from(self.secret.leaf.as_ref().unwrap());
            }
        }
    }

    fn check(&self) {
        let Some((trusted, _)) = &self.registered else { return };
        for (lag, serving) in &self.replicas {
            assert!(
                serving.covered_by(trusted, &self.names.server_name(), self.now),
                "at {} a replica that is {lag:?} late serves a leaf that is not trusted, after {:?}",
                self.now,
                self.history
            );
        }
    }

    fn run(&mut self, span: Duration) {
        let end = self.now + span;
        while self.now < end {
            let quiet = self.now >= self.written + HOUR;
            let rotating = self.secret.authorities.len() > 1;
            self.tick(match (quiet, rotating) {
                (false, _) => MINUTE,
                (true, true) => HOUR,
                (true, false) => 6 * HOUR,
            });
        }
    }
}

#[test]
fn over_three_years_every_replica_serves_only_what_is_trusted() {
    let mut world = World::new();
    world.run(3 * 365 * DAY);
    let rotations = world.history.iter().filter(|action| **action == Action::AppendAuthority).count();
    assert!((4..=6).contains(&rotations), "{:?}", world.history);
    assert!(!world.history.contains(&Action::IssueAnew));
}

#[test]
fn a_new_authority_is_trusted_before_it_signs_and_the_old_one_goes_last() {
    let mut world = World::new();
    world.secret.signing_key = None;
    world.run(DAY);
    assert_eq!(world.history, [Action::AppendAuthority, Action::IssueLeaf, Action::RetireAuthorities]);
}

#[test]
fn the_leaf_stays_for_as_long_as_the_webhook_configurations_lag() {
    let mut world = World::new();
    world.registration_lag = 20 * DAY;
    world.secret.signing_key = None;
    world.run(19 * DAY);
    assert_eq!(world.history, [Action::AppendAuthority]);
    world.run(2 * DAY);
    assert_eq!(world.history.len(), 3);
}

#[test]
fn nothing_is_swapped_before_anybody_has_looked_at_the_webhook_configurations() {
    let mut world = World::new();
    world.registered = None;
    world.secret.signing_key = None;
    world.run(DAY);
    assert_eq!(world.history, [Action::AppendAuthority]);
}

#[test]
fn a_leaf_is_renewed_by_the_same_authority_in_time() {
    let mut world = World::new();
    let first = world.secret.leaf.clone().unwrap();
    world.run(61 * DAY);
    assert_eq!(world.history, [Action::IssueLeaf]);
    assert_eq!(world.secret.authorities.len(), 1);
    assert!(world.secret.leaf.unwrap().not_after > first.not_after);
}

#[test]
fn a_deleted_secret_becomes_a_rotation_in_order() {
    let mut world = World::new();
    world.run(5 * DAY);
    let remembered = world.secret.clone();
    world.secret = complete(&State::default(), Some(&remembered), &world.names, world.now);
    assert_eq!(world.secret.leaf, remembered.leaf);
    world.run(DAY);
    assert_eq!(world.history, [Action::AppendAuthority, Action::IssueLeaf, Action::RetireAuthorities]);
}

#[test]
fn each_key_of_the_secret_garbled_or_missing_is_recovered() {
    for key in [TLS_CRT, TLS_KEY, CA_CRT, CA_KEY] {
        for value in [None, Some("garbled"), Some("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")] {
            let mut world = World::new();
            let remembered = world.secret.clone();
            let mut data = world.secret.data();
            match value {
                None => drop(data.remove(key)),
                Some(text) => {
                    data.insert(key.into(), k8s_openapi::ByteString(text.into()));
                }
            }
            let read = State::read(&data);

            // A replica that never saw a good one makes a leaf that can be served, whatever is left.
            let mut alone = read.clone();
            for _ in 0..3 {
                let action = next(&alone, &world.registration(), &world.names, world.now);
                alone = perform(action, &alone, &world.registration(), &world.names, world.now).unwrap();
            }
            assert!(alone.leaf_issuer(&world.names, world.now).is_some(), "{key} {value:?}");

            // One that did goes on without anybody noticing.
            world.secret = complete(&read, Some(&remembered), &world.names, world.now);
            world.run(DAY);
            assert!(!world.history.contains(&Action::IssueAnew), "{key} {value:?}: {:?}", world.history);
            assert_eq!(world.secret.authorities.len(), 1);
            assert!(world.secret.signer().is_some());
        }
    }
}

#[test]
fn an_expired_secret_is_issued_anew_and_what_is_registered_stays_trusted() {
    let mut world = World::new();
    let old = certificates(&world.secret);
    world.now += 100 * DAY;
    let action = next(&world.secret, &world.registration(), &world.names, world.now);
    assert_eq!(action, Action::IssueLeaf, "the authority is still good");
    world.now += 300 * DAY;
    let action = next(&world.secret, &world.registration(), &world.names, world.now);
    assert_eq!(action, Action::IssueAnew, "nothing is");
    let anew = perform(action, &State::default(), &World::new().registration(), &world.names, world.now).unwrap();
    assert_eq!(anew.authorities.len(), 1, "an expired authority is not carried over");

    let young = World::new();
    let anew = perform(Action::IssueAnew, &State::default(), &young.registration(), &young.names, young.now).unwrap();
    assert_eq!(anew.authorities.len(), 2);
    assert!(anew.trusts(&certificates(&young.secret)[0]) && !anew.trusts(&old[0]));
}

#[test]
fn a_leaf_for_another_service_is_replaced() {
    let world = World::new();
    let other = Names { service: "renamed".into(), ..names() };
    assert_eq!(next(&world.secret, &world.registration(), &other, world.now), Action::IssueLeaf);
}

#[test]
fn a_secret_survives_being_written_and_read() {
    let world = World::new();
    let read = State::read(&world.secret.data());
    assert_eq!(read.authorities, world.secret.authorities);
    assert_eq!(read.leaf, world.secret.leaf);
    assert_eq!(read.signer().map(|(a, _)| a), world.secret.signer().map(|(a, _)| a));
}
