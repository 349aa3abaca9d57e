//! The tasks at the edge, against an API server in memory.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use tokio::sync::watch;

use super::fake_api::{FakeApi, MUTATING, SECRETS, SLICES, VALIDATING};
use super::keep::keep_rotated;
use super::reload::{Patience, keep_reloaded};
use super::store::{SecretStore, Written};
use super::token::accept::{Accepted, Verdict};
use super::token::{Token, Tokens, keep as token};
use super::webhook_config::{Webhooks, keep_registered, look};
use super::{Names, Registration, Serving, State};

const NAME: &str = "sluice";

fn names() -> Names {
    Names { service: "sluice".into(), namespace: "sluice-system".into() }
}

fn store(api: &FakeApi) -> SecretStore {
    SecretStore::new(api.client.clone(), NAME, names())
}

fn webhooks() -> Webhooks {
    Webhooks { validating: NAME.into(), mutating: NAME.into(), names: names(), secret: NAME.into() }
}

fn slice(ready: bool) -> Value {
    json!({"addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]})
}

fn secret(api: &FakeApi) -> Option<State> {
    let secret: Secret = serde_json::from_value(api.get(SECRETS, NAME)?).unwrap();
    Some(State::read(&secret.data.unwrap()))
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let met = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), met).await.unwrap_or_else(|_| panic!("never: {what}"));
}

/// Long enough for whatever would be written in error.
async fn a_while() {
    tokio::time::sleep(Duration::from_millis(500)).await;
}

#[tokio::test]
async fn of_replicas_that_start_together_all_serve_what_one_of_them_issued() {
    let api = FakeApi::start().await;
    let (a, b, c) = (store(&api), store(&api), store(&api));
    let absent = Registration::Absent;
    let (a, b, c) = tokio::join!(a.ensure(&absent), b.ensure(&absent), c.ensure(&absent));
    let (a, b, c) = (a.unwrap(), b.unwrap(), c.unwrap());
    assert!(a.leaf.is_some() && a.leaf == b.leaf && b.leaf == c.leaf);
    assert_eq!(api.get(SECRETS, NAME).unwrap()["type"], "kubernetes.io/tls");
}

#[tokio::test]
async fn a_write_over_what_was_changed_since_is_lost() {
    let api = FakeApi::start().await;
    let state = store(&api).ensure(&Registration::Absent).await.unwrap();
    let read = store(&api).read().await.unwrap();
    api.put(SECRETS, NAME, api.get(SECRETS, NAME).unwrap());
    assert_eq!(store(&api).write(read, state.data()).await.unwrap(), Written::Lost);
    assert_eq!(store(&api).write(None, state.data()).await.unwrap(), Written::Lost);
}

#[tokio::test]
async fn a_garbled_secret_is_mended_at_start() {
    let api = FakeApi::start().await;
    api.put(SECRETS, NAME, json!({"data": {"tls.crt": ByteString(b"x".to_vec())}}));
    let state = store(&api).ensure(&Registration::Absent).await.unwrap();
    assert_eq!(secret(&api).unwrap().leaf, state.leaf);
}

#[tokio::test]
async fn a_deleted_secret_comes_back_with_the_leaf_that_all_serve_and_a_new_authority() {
    let api = FakeApi::start().await;
    let state = store(&api).ensure(&Registration::Absent).await.unwrap();
    let serving = Serving::new(names());
    serving.offer(state.clone(), Timestamp::now(), Patience::Hold).unwrap();
    let trusted = state.authorities.iter().map(|authority| authority.certificate.clone()).collect();
    let registered = Registration::Trusting {
        authorities: trusted,
        named: Vec::new(),
        since: Timestamp::UNIX_EPOCH,
        named_since: Timestamp::UNIX_EPOCH,
        complete: true,
    };
    let (_told, registration) = watch::channel(registered);
    let reload = tokio::spawn(keep_reloaded(store(&api), serving.clone()));
    let rotate = tokio::spawn(keep_rotated(store(&api), serving.known(), registration));
    a_while().await;

    api.delete(SECRETS, NAME);
    until("the Secret is back", || api.get(SECRETS, NAME).is_some()).await;
    let back = secret(&api).unwrap();
    assert_eq!(back.leaf, state.leaf);
    assert_eq!(back.authorities.len(), 2);
    let bundle = serving.current_bundle();
    until("the bundle is published", || *bundle.borrow() == back.bundle_pem()).await;
    reload.abort();
    rotate.abort();
}

#[tokio::test]
async fn whatever_the_secret_has_lost_is_written_back() {
    for key in ["tls.crt", "tls.key", "ca.crt", "ca.key"] {
        let api = FakeApi::start().await;
        let state = store(&api).ensure(&Registration::Absent).await.unwrap();
        let serving = Serving::new(names());
        serving.offer(state.clone(), Timestamp::now(), Patience::Hold).unwrap();
        let reload = tokio::spawn(keep_reloaded(store(&api), serving.clone()));
        let (_told, registration) = watch::channel(Registration::Absent);
        let rotate = tokio::spawn(keep_rotated(store(&api), serving.known(), registration));
        a_while().await;
        let mut without = api.get(SECRETS, NAME).unwrap();
        without["data"].as_object_mut().unwrap().remove(key).unwrap();
        api.put(SECRETS, NAME, without);
        let has = || api.get(SECRETS, NAME).unwrap()["data"][key].is_string();
        until(&format!("{key} is back"), has).await;
        let bundle = serving.current_bundle();
        until("the bundle of the Secret is the one that is published", || {
            secret(&api).unwrap().bundle_pem() == *bundle.borrow()
        })
        .await;
        reload.abort();
        rotate.abort();
    }
}

struct Registered {
    api: FakeApi,
    bundle: Arc<watch::Sender<String>>,
    accepted: Arc<Accepted>,
    seen: watch::Receiver<Registration>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn register(ready: bool) -> Registered {
    let api = FakeApi::start().await;
    api.put(SLICES, "sluice-1", slice(ready));
    api.put(VALIDATING, NAME, json!({}));
    api.put(MUTATING, NAME, json!({}));
    let state = store(&api).ensure(&Registration::Absent).await.unwrap();
    let bundle = Arc::new(watch::Sender::new(state.bundle_pem()));
    let tokens = token::ensure(&token_store(&api), &Registration::Absent).await.unwrap();
    let accepted = Accepted::new(tokens, &Registration::Absent, Timestamp::now());
    let (told, seen) = watch::channel(Registration::Unknown);
    let running = keep_registered(api.client.clone(), webhooks(), bundle.subscribe(), accepted.known(), told);
    let task = tokio::spawn(async move {
        let ended = running.await;
        panic!("{ended:?}");
    });
    Registered { api, bundle, accepted, seen, task }
}

fn patches(api: &FakeApi) -> usize {
    api.writes().iter().filter(|write| write.starts_with("PATCH")).count()
}

#[tokio::test]
async fn webhooks_are_registered_once_somebody_can_answer_and_then_left_alone() {
    let it = register(false).await;
    a_while().await;
    assert_eq!(patches(&it.api), 0);
    assert_eq!(*it.seen.borrow(), Registration::Absent);

    it.api.put(SLICES, "sluice-1", slice(true));
    until("both are registered", || it.seen.borrow().in_force()).await;
    a_while().await;
    assert_eq!(patches(&it.api), 2, "{:?}", it.api.writes());
    assert_eq!(it.api.get(VALIDATING, NAME).unwrap()["webhooks"][0]["name"], "validate.sluice.dev");
    assert!(look(it.api.client.clone(), webhooks()).await.unwrap().in_force());
}

#[tokio::test]
async fn a_foreign_change_is_answered_with_one_write_and_a_quarrel_ever_more_slowly() {
    let it = register(true).await;
    until("both are registered", || it.seen.borrow().in_force()).await;
    for round in 1..=3 {
        let mut live = it.api.get(VALIDATING, NAME).unwrap();
        live["webhooks"][0]["failurePolicy"] = json!("Ignore");
        it.api.put(VALIDATING, NAME, live);
        until("mended", || it.api.get(VALIDATING, NAME).unwrap()["webhooks"][0]["failurePolicy"] == "Fail").await;
        a_while().await;
        assert_eq!(patches(&it.api), 2 + round);
    }
}

#[tokio::test]
async fn a_new_bundle_is_written_even_while_nobody_is_ready() {
    let it = register(true).await;
    until("both are registered", || it.seen.borrow().in_force()).await;
    let since = it.api.get(MUTATING, NAME).unwrap()["metadata"]["annotations"].clone();
    it.api.put(SLICES, "sluice-1", slice(false));
    let (more, _) = super::issue::authority(Timestamp::now()).unwrap();
    let mut both = secret(&it.api).unwrap();
    both.authorities.push(more.clone());
    it.bundle.send_replace(both.bundle_pem());
    a_while().await;
    assert_eq!(patches(&it.api), 2, "the Secret does not say so");
    let old = store(&it.api).read().await.unwrap();
    assert_eq!(store(&it.api).write(old, both.data()).await.unwrap(), Written::Yes);
    until("both trust it", || match &*it.seen.borrow() {
        Registration::Trusting { authorities, .. } => authorities.contains(&more.certificate),
        _ => false,
    })
    .await;
    assert_eq!(patches(&it.api), 4);
    assert_eq!(it.api.get(MUTATING, NAME).unwrap()["metadata"]["annotations"], since);
}

#[tokio::test]
async fn a_configuration_that_is_gone_is_never_made_again() {
    let it = register(true).await;
    until("both are registered", || it.seen.borrow().in_force()).await;
    it.api.delete(MUTATING, NAME);
    until("it is noticed", || !it.seen.borrow().in_force()).await;
    it.api.delete(VALIDATING, NAME);
    until("it is noticed", || *it.seen.borrow() == Registration::Absent).await;
    a_while().await;
    assert_eq!(patches(&it.api), 2);
    assert!(it.api.get(MUTATING, NAME).is_none());
}

#[tokio::test]
async fn a_new_current_token_is_named_in_both() {
    let it = register(true).await;
    until("both are registered", || it.seen.borrow().in_force()).await;
    let tokens = Tokens::first(&[], Timestamp::now());
    it.accepted.offer(tokens.clone(), Timestamp::now());
    a_while().await;
    assert_eq!(patches(&it.api), 2, "the Secret does not say so");
    let old = token_store(&it.api).read().await.unwrap();
    assert_eq!(token_store(&it.api).write(old, tokens.data()).await.unwrap(), Written::Yes);
    until("both name it", || it.seen.borrow().named() == [tokens.current.clone()]).await;
    assert_eq!(patches(&it.api), 4);
}

const TOKEN: &str = "sluice-token";

fn token_store(api: &FakeApi) -> SecretStore {
    SecretStore::of_type(api.client.clone(), TOKEN, names(), token::SECRET_TYPE)
}

fn tokens(api: &FakeApi) -> Option<Tokens> {
    let secret: Secret = serde_json::from_value(api.get(SECRETS, TOKEN)?).unwrap();
    Tokens::read(&secret.data.unwrap())
}

fn naming(token: &Token) -> Registration {
    let (authorities, since) = (Vec::new(), Timestamp::UNIX_EPOCH);
    Registration::Trusting { authorities, named: vec![token.clone()], since, named_since: since, complete: true }
}

#[tokio::test]
async fn replicas_that_start_together_have_one_token_and_one_that_the_webhooks_name_already_stays_current() {
    let api = FakeApi::start().await;
    let (a, b) = (token_store(&api), token_store(&api));
    let absent = Registration::Absent;
    let (a, b) = tokio::join!(token::ensure(&a, &absent), token::ensure(&b, &absent));
    assert_eq!(a.unwrap(), b.unwrap());
    assert_eq!(api.get(SECRETS, TOKEN).unwrap()["type"], token::SECRET_TYPE);

    api.put(SECRETS, TOKEN, json!({"data": {"current": ByteString(b"x".to_vec())}}));
    let named = Token::random();
    let mended = token::ensure(&token_store(&api), &naming(&named)).await.unwrap();
    assert_eq!((&mended.current, mended.accepted.len()), (&named, 2));
    assert_eq!(tokens(&api), Some(mended));
}

#[tokio::test]
async fn a_deleted_token_comes_back_with_a_successor_and_nobody_forgets_it() {
    let api = FakeApi::start().await;
    let first = token::ensure(&token_store(&api), &Registration::Absent).await.unwrap();
    let accepted = Accepted::new(first.clone(), &Registration::Absent, Timestamp::now());
    let (_told, registration) = watch::channel(naming(&first.current));
    let follow = tokio::spawn(token::follow(token_store(&api), accepted.clone()));
    let renew = tokio::spawn(token::keep_renewed(token_store(&api), accepted.clone(), registration));
    a_while().await;
    assert_eq!(tokens(&api), Some(first.clone()));

    api.delete(SECRETS, TOKEN);
    until("the Secret is back", || api.get(SECRETS, TOKEN).is_some()).await;
    let back = tokens(&api).unwrap();
    assert_eq!((&back.current, back.accepted.len()), (&first.current, 2));
    let known = accepted.known();
    until("it is followed", || **known.borrow() == back).await;
    let said = |token: &Token| token.path("").trim_start_matches('/').to_owned();
    assert!(back.accepted.iter().all(|token| accepted.judge(&said(token), Timestamp::now()) == Verdict::LetIn));
    follow.abort();
    renew.abort();
}

#[tokio::test]
async fn t02_a_token_that_was_seen_gets_a_successor_and_one_that_has_one_gets_no_other() {
    let api = FakeApi::start().await;
    let mut first = token::ensure(&token_store(&api), &Registration::Absent).await.unwrap();
    first.made = Timestamp::UNIX_EPOCH;
    let old = token_store(&api).read().await.unwrap();
    assert_eq!(token_store(&api).write(old, first.data()).await.unwrap(), Written::Yes);
    let accepted = Accepted::new(first.clone(), &Registration::Absent, Timestamp::now());
    let replace = tokio::spawn(token::replace_exposed(token_store(&api), accepted.clone()));
    a_while().await;
    assert_eq!(tokens(&api), Some(first.clone()));

    for _ in 0..3 {
        accepted.note_exposed(&first.current.path("")[1..]);
        accepted.note_current_exposed();
        until("it is replaced, and forgotten", || accepted.exposed.noted().is_empty()).await;
        let after = tokens(&api).unwrap();
        assert_eq!((&after.current, after.accepted.len()), (&first.current, 2));
        assert!(after.made > first.made);
    }
    accepted.note_exposed(&Token::random().path("")[1..]);
    assert!(accepted.exposed.noted().is_empty(), "it is nobody's");
    replace.abort();
}

#[tokio::test]
async fn t02_a_start_counts_the_token_of_before_as_seen_and_a_token_that_it_makes_itself_not() {
    let api = FakeApi::start().await;
    let start = || token::Keeper::start(api.client.clone(), names(), &Registration::Absent);
    let first = start().await.unwrap();
    assert!(first.accepted.exposed.noted().is_empty());
    let current = tokens(&api).unwrap().current;
    let second = start().await.unwrap();
    assert_eq!(second.accepted.exposed.noted(), [current]);
}
