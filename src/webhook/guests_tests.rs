//! Who is known for how long, and who has to go.

use super::*;

const BOUNDS: Bounds = Bounds {
    strangers: 4,
    known: 2,
    vouched: Duration::from_secs(120),
    handshake: Duration::ZERO,
    silent: Duration::ZERO,
    speaking: Duration::ZERO,
};

fn from(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

fn is_sent_away(caller: &Caller) -> bool {
    caller.0.sent_away.is_cancelled()
}

#[test]
fn t04_the_oldest_of_whoever_has_the_most_connections_is_sent_away() {
    let guests = Guests::new(BOUNDS);
    let other = guests.enter(from(1));
    let greedy: Vec<Caller> = (0..50).map(|_| guests.enter(from(2))).collect();
    assert!(!is_sent_away(&other), "one connection was lost to another's fifty");
    let gone = greedy.iter().filter(|caller| is_sent_away(caller)).count();
    assert_eq!((gone, guests.count()), (47, (4, 0)));
    assert!(greedy[47..].iter().all(|caller| !is_sent_away(caller)), "the newest stay");
}

#[test]
fn t04_whoever_is_known_is_sent_away_by_nobody_and_takes_no_strangers_place() {
    let guests = Guests::new(BOUNDS);
    let api_server = guests.enter(from(1));
    api_server.vouch();
    api_server.vouch();
    let strangers: Vec<Caller> = (0..10).map(|_| guests.enter(from(1))).collect();
    assert_eq!((guests.count(), is_sent_away(&api_server)), ((4, 1), false));
    drop(strangers);
    drop(api_server);
    assert_eq!(guests.count(), (0, 0));
}

#[test]
fn t04_even_those_who_know_the_token_are_so_many_at_most() {
    let guests = Guests::new(BOUNDS);
    let known: Vec<Caller> = (0..3).map(|_| guests.enter(from(1))).collect();
    known.iter().for_each(Caller::vouch);
    assert_eq!(guests.count(), (1, 2));
}

#[test]
fn t04_who_has_not_brought_the_token_for_two_minutes_is_a_stranger_again() {
    let (guests, began) = (Guests::new(BOUNDS), Instant::now());
    let after = |seconds| began + Duration::from_secs(seconds);
    let caller = guests.enter_at(from(1), began);
    caller.vouch_at(began);
    caller.vouch_at(after(119));
    let mut strangers: Vec<Caller> = (0..4).map(|_| guests.enter_at(from(2), after(238))).collect();
    assert_eq!((guests.count(), caller.is_known()), ((4, 1), true), "it has brought it again meanwhile");
    strangers.push(guests.enter_at(from(3), after(239)));
    assert_eq!((guests.count(), caller.is_known()), ((4, 0), false));
    drop((caller, strangers));
    assert_eq!(guests.count(), (0, 0));
}

#[test]
fn t04_those_who_were_known_long_ago_leave_room_for_who_knows_the_token_now() {
    let (guests, began) = (Guests::new(BOUNDS), Instant::now());
    let known: Vec<Caller> = (0..2).map(|_| guests.enter_at(from(1), began)).collect();
    known.iter().for_each(|caller| caller.vouch_at(began));
    let now = guests.enter_at(from(2), began);
    now.vouch_at(began + Duration::from_secs(119));
    assert!(!now.is_known());
    now.vouch_at(began + Duration::from_secs(120));
    assert_eq!((guests.count(), now.is_known(), known[0].is_known()), ((2, 1), true, false));
}

#[test]
fn t04_whoever_brings_a_wrong_token_is_a_stranger_whatever_it_brought_before() {
    let guests = Guests::new(BOUNDS);
    let caller = guests.enter(from(1));
    caller.vouch();
    let strangers: Vec<Caller> = (0..4).map(|_| guests.enter(from(1))).collect();
    caller.refuse();
    assert_eq!(guests.count(), (4, 0));
    assert!(is_sent_away(&caller), "it is the oldest of them");
    caller.vouch();
    assert_eq!((guests.count(), strangers.iter().any(is_sent_away)), ((4, 0), false));
}

#[test]
fn t04_a_connection_that_was_sent_away_cannot_become_known() {
    let guests = Guests::new(BOUNDS);
    let callers: Vec<Caller> = (0..5).map(|_| guests.enter(from(1))).collect();
    callers[0].vouch();
    assert_eq!((guests.count(), is_sent_away(&callers[0])), ((4, 0), true));
}

#[test]
fn t04_addresses_of_one_ipv6_network_are_one_place() {
    let of = |text: &str| network(text.parse().unwrap());
    assert_eq!(of("fd00:1:2:3::1"), of("fd00:1:2:3:ffff::2"));
    assert_ne!(of("fd00:1:2:3::1"), of("fd00:1:2:4::1"));
    assert_eq!(of("::ffff:10.0.0.1"), of("10.0.0.1"));
}
