//! What is promised of the token's life, in the world of [`super::simulation`].

use std::time::Duration;

use super::keep::LOOK;
use super::rotate::{ACCEPTED_WITHIN, Action, HEARD_WITHIN, LIFETIME, PAUSE, next, perform};
use super::simulation::{API_SERVERS, Event, MINUTE, REPLICAS, SECOND, World, naming};
use super::{Token, Tokens};
use crate::certs::rotate::Registration;

/// All who do not stand still do what they do every second.
fn run(world: &mut World, span: Duration) {
    let end = world.now + span;
    while world.now < end {
        if world.stands_still(world.leader) {
            // Its Lease ends after a while, and another leads.
            if world.now >= world.replicas[world.leader].still.0 + 10 * SECOND {
                let other = (world.leader + 1) % REPLICAS;
                world.happen(Event::Elect(other));
            }
        } else {
            world.happen(Event::Register { whole: true });
            world.happen(Event::Step);
        }
        for replica in (0..REPLICAS).filter(|replica| !world.stands_still(*replica)).collect::<Vec<_>>() {
            world.happen(Event::Replace(replica));
            world.happen(Event::Read(replica));
        }
        world.now += SECOND;
        world.bounds();
    }
}

impl World {
    fn current(&self) -> Token {
        self.secret.clone().unwrap().current
    }

    fn assert_refused(&self, token: &Token) {
        for replica in &self.replicas {
            assert!(!self.lets_in(replica, token), "let in at {}: {:?}", self.now, self.history);
        }
    }
}

#[test]
fn a_token_is_used_for_little_more_than_its_lifetime_and_then_no_longer_accepted() {
    let mut world = World::new();
    let first = world.current();
    run(&mut world, LIFETIME + ACCEPTED_WITHIN + HEARD_WITHIN + 5 * SECOND);
    assert_eq!(world.history, [Action::Append, Action::Name, Action::Retire]);
    assert_ne!(world.registered.as_ref().unwrap()[0], first);
    world.assert_refused(&first);
    run(&mut world, 2 * LIFETIME);
    assert_eq!(world.history.len(), 3 * 3, "it goes on: {:?}", world.history);
}

#[test]
fn t02_a_token_that_was_seen_is_refused_by_all_within_a_minute_at_whatever_moment_it_was() {
    for moment in (0..90).step_by(2) {
        let mut world = World::new();
        run(&mut world, MINUTE);
        world.happen(Event::Expose(0, 1));
        run(&mut world, moment * SECOND);
        // Whatever an API server may call by at this moment, of a token that is fresh, old, or being replaced.
        (0..API_SERVERS).for_each(|server| world.happen(Event::Expose(server, 0)));
        let seen: Vec<Token> = world.api_servers.iter().flat_map(|(named, _)| named.clone()).flatten().collect();
        run(&mut world, MINUTE);
        seen.iter().for_each(|token| world.assert_refused(token));
    }
}

#[test]
fn t02_a_start_of_any_replica_replaces_the_token_and_a_rollout_of_three_does_it_once_or_twice() {
    let mut world = World::new();
    run(&mut world, 5 * MINUTE);
    let first = world.current();
    world.happen(Event::Restart(2));
    run(&mut world, MINUTE);
    world.assert_refused(&first);

    run(&mut world, 5 * MINUTE);
    let (before, second) = (world.replaced.len(), world.current());
    for replica in 0..REPLICAS {
        world.happen(Event::Restart(replica));
        run(&mut world, 10 * SECOND);
    }
    run(&mut world, MINUTE);
    world.assert_refused(&second);
    run(&mut world, 5 * MINUTE);
    assert!((1..=2).contains(&(world.replaced.len() - before)), "{:?}", world.replaced);
}

#[test]
fn t02_whoever_makes_calls_go_wrong_for_ever_has_no_more_than_one_token_replaced_in_half_a_minute() {
    let mut world = World::new();
    let span = 20 * MINUTE;
    let end = world.now + span;
    while world.now < end {
        run(&mut world, SECOND);
        for replica in 0..REPLICAS {
            (0..API_SERVERS).for_each(|server| world.happen(Event::Expose(server, replica)));
        }
    }
    assert!(world.replaced.windows(2).all(|two| two[1] >= two[0] + PAUSE), "{:?}", world.replaced);
    assert!(world.replaced.len() > 20, "{:?}", world.replaced);
}

#[test]
fn t02_a_replica_that_stood_still_refuses_what_was_replaced_meanwhile_and_lets_in_what_replaced_it() {
    for still in [15, 45, 90, 3000] {
        let mut world = World::new();
        run(&mut world, 5 * MINUTE);
        let first = world.current();
        world.happen(Event::Still(1, still));
        world.happen(Event::Expose(0, 0));
        run(&mut world, MINUTE);
        assert_ne!(world.current(), first);
        world.assert_refused(&first);
    }
}

#[test]
fn t02_a_leader_that_stands_still_delays_it_by_no_more_than_its_lease_and_another_look() {
    let mut world = World::new();
    run(&mut world, 5 * MINUTE);
    let first = world.current();
    world.happen(Event::Expose(0, 1));
    run(&mut world, 20 * SECOND);
    world.happen(Event::Still(world.leader, 3000));
    run(&mut world, MINUTE);
    world.assert_refused(&first);
}

#[test]
fn a_replica_hears_by_its_own_looks_before_a_token_is_named() {
    assert!(LOOK < ACCEPTED_WITHIN && super::accept::FRESH < ACCEPTED_WITHIN && LOOK < super::accept::STALE);
}

#[test]
fn a_deleted_secret_becomes_a_rotation_in_order() {
    let mut world = World::new();
    run(&mut world, 5 * MINUTE);
    let first = world.current();
    world.happen(Event::Delete);
    run(&mut world, 2 * MINUTE);
    assert_eq!(world.history, [Action::Append, Action::Name, Action::Retire]);
    world.assert_refused(&first);
}

#[test]
fn a_secret_that_is_gone_when_all_start_keeps_what_the_webhooks_name() {
    let mut world = World::new();
    run(&mut world, 5 * MINUTE);
    world.secret = Some(Tokens::first(world.look().named(), world.now));
    (0..REPLICAS).for_each(|replica| world.happen(Event::Restart(replica)));
    run(&mut world, 2 * MINUTE);
    assert_eq!(world.history, [Action::Name, Action::Retire]);
}

#[test]
fn nothing_is_retired_before_anybody_has_looked_or_while_one_webhook_names_another() {
    let start = World::new().now;
    let tokens = perform(Action::Append, &Tokens::first(&[], start), start);
    let (old, later) = (tokens.current.clone(), start + LIFETIME);
    assert_eq!(next(&tokens, later, &Registration::Absent, later), Action::Keep, "it is known since a moment ago");
    assert_eq!(next(&tokens, start, &Registration::Absent, later), Action::Name);
    let tokens = perform(Action::Name, &tokens, later);
    let much_later = later + LIFETIME;
    let due = |registration: &Registration| next(&tokens, start, registration, much_later);
    assert_eq!(due(&Registration::Unknown), Action::Keep);
    assert_eq!(due(&naming(vec![tokens.current.clone(), old.clone()], later)), Action::Keep);
    assert_eq!(due(&naming(vec![tokens.current.clone()], much_later)), Action::Keep, "the API servers have a while");
    assert_eq!(due(&naming(vec![tokens.current.clone()], later)), Action::Retire);
    assert_eq!(perform(Action::Retire, &tokens, much_later).retired, [old]);
}

#[test]
fn a_successor_is_not_named_while_an_older_token_is_still_accepted() {
    let start = World::new().now;
    let mut tokens = Tokens::first(&[], start);
    for action in [Action::Append, Action::Name, Action::Append] {
        tokens = perform(action, &tokens, start);
    }
    let later = start + LIFETIME;
    assert_eq!(next(&tokens, start, &naming(vec![tokens.current.clone()], later), later), Action::Keep);
    assert_eq!(next(&tokens, start, &naming(vec![tokens.current.clone()], start), later), Action::Retire);
    let tokens = perform(Action::Retire, &tokens, later);
    assert_eq!(next(&tokens, start, &naming(vec![tokens.current.clone()], start), later), Action::Name);
}
