//! What forks are made of, read within bounds: what a tenant's Deployments and Services hold is up to the tenant, and a
//! text of JSON takes a hundred times as much memory once it is values. So a text is measured first, and all forks that
//! are put together at a time share one room.

use super::super::ControllerError;
use super::super::fork::{ForkError, MIB, MOST_OF_BASELINE};
use super::super::kept::KeptService;
use super::super::turns::Turns;
use crate::client::pages::MOST_OBJECTS;
use crate::plan::cost;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Service;
use kube::api::{GetParams, ListParams, ObjectList, Request};
use kube::{Client, Resource};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

/// What all forks that are put together at a time may take, in bytes: one of the largest, or hundreds as they mostly are.
const ALL_FORKS: usize = 48 * MIB;
/// So many times its baseline a fork takes: the baseline, what is made of it, and a patch's copy.
const COPIES: usize = 4;
/// Baselines whose text is read at once, before it is known what they take.
const BASELINES_AT_ONCE: usize = 2;
/// What the Services of all namespaces may take that are kept at a time, in bytes.
const ALL_SERVICES: usize = 16 * MIB;
/// What is kept of the Services of one namespace, in bytes: it is about ten thousand of them.
const MOST_SERVICES: usize = 4 * MIB;
/// What is read of one namespace's Services, in bytes: ten thousand as they mostly are.
const MOST_READ: usize = 64 * MIB;
/// Lists of Services at once.
const LISTS_AT_ONCE: usize = 4;
/// What a Service takes beside its texts, in bytes.
const ONE_SERVICE: usize = 400;

/// Whoever waits for room for its objects has room for their text, and never the other way round, so that no two wait for
/// each other. A permit of what is measured is a KiB.
pub struct Room {
    forks: Arc<Semaphore>,
    baselines: Semaphore,
    services: Arc<Semaphore>,
    lists: Semaphore,
    /// Who reads the Services of a namespace: one at a time, so that a large one keeps no other waiting.
    turns: Turns,
    /// What came of the last list of a namespace, and when it began.
    listed: Mutex<HashMap<String, Listed>>,
}

/// When a list began, and what came of it for as long as somebody has it.
type Listed = (Instant, Result<Weak<Services>, ForkError>);

impl Default for Room {
    fn default() -> Self {
        Self {
            forks: Arc::new(Semaphore::new(ALL_FORKS / 1024)),
            baselines: Semaphore::new(BASELINES_AT_ONCE),
            services: Arc::new(Semaphore::new(ALL_SERVICES / 1024)),
            lists: Semaphore::new(LISTS_AT_ONCE),
            turns: Turns::default(),
            listed: Mutex::default(),
        }
    }
}

/// The spec of a baseline, with room for what is made of it.
pub struct Baseline {
    pub spec: Value,
    pub room: Option<OwnedSemaphorePermit>,
}

/// The Services of a namespace that may lead to a baseline.
#[derive(Default)]
pub struct Services {
    pub all: Vec<KeptService>,
    _room: Option<OwnedSemaphorePermit>,
}

/// Room for so many bytes. Nobody closes a semaphore, so there is none only in theory, and then no bound.
async fn take(of: &Arc<Semaphore>, bytes: usize) -> Option<OwnedSemaphorePermit> {
    let permits = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX);
    of.clone().acquire_many_owned(permits).await.ok()
}

/// Reads the spec of a Deployment, once there is room for a fork of it.
pub async fn baseline(
    (room, client): (&Room, &Client),
    namespace: &str,
    name: &str,
) -> Result<Result<Baseline, ForkError>, ControllerError> {
    let reading: Result<_, AcquireError> = room.baselines.acquire().await;
    let request = Request::new(Deployment::url_path(&(), Some(namespace))).get(name, &GetParams::default());
    let text = match request.map_err(kube::Error::BuildRequest) {
        Ok(request) => client.request_text(request).await,
        Err(error) => Err(error),
    };
    let text = match text {
        Ok(text) => text,
        Err(error) if crate::engine::is_status(&error, 404) => {
            let (kind, name, namespace) = ("Deployment".to_owned(), name.to_owned(), namespace.to_owned());
            return Ok(Err(ForkError::NoBaseline { kind, name, namespace }));
        }
        Err(error) => return Err(ControllerError::api("read a fork's baseline")(error)),
    };
    let Ok(measured) = tokio::task::spawn_blocking(move || measured(&text)).await else {
        return Err(ControllerError::Panicked);
    };
    let (spec, cost) = measured.map_err(ControllerError::shape("a Deployment"))?;
    if cost > MOST_OF_BASELINE {
        return Ok(Err(ForkError::Baseline { name: name.to_owned(), cost }));
    }
    let taken = take(&room.forks, cost * COPIES).await;
    drop(reading);
    let Ok(spec) = tokio::task::spawn_blocking(move || serde_json::from_str(spec.get())).await else {
        return Err(ControllerError::Panicked);
    };
    let spec = spec.map_err(ControllerError::shape("a Deployment"))?;
    Ok(Ok(Baseline { spec, room: taken }))
}

/// The text of a Deployment's spec, and what it takes as values.
fn measured(text: &str) -> Result<(Box<RawValue>, usize), serde_json::Error> {
    #[derive(serde::Deserialize)]
    struct Whole {
        spec: Box<RawValue>,
    }
    let Whole { spec } = serde_json::from_str(text)?;
    let cost = cost::of(spec.get().as_bytes());
    Ok((spec, cost.objects + cost.parsing))
}

/// Lists the Services of a namespace. Who waits for another's list of the same takes that one, if it began later than
/// the wait.
pub async fn services(
    (room, client): (&Room, &Client),
    namespace: &str,
) -> Result<Result<Arc<Services>, ForkError>, ControllerError> {
    let asked = Instant::now();
    let _turn = room.turns.take(namespace).await;
    if let Some(known) = room.known(namespace, asked) {
        return Ok(known);
    }
    let began = Instant::now();
    let read = {
        let _one: Result<_, AcquireError> = room.lists.acquire().await;
        read_services(client, namespace).await?
    };
    let read = match read {
        Ok((all, bytes)) => Ok(Arc::new(Services { all, _room: take(&room.services, bytes).await })),
        Err(error) => Err(error),
    };
    room.note(namespace, began, &read);
    Ok(read)
}

/// The Services that have a selector and are no fork's, and what they take in bytes.
async fn read_services(
    client: &Client,
    namespace: &str,
) -> Result<Result<(Vec<KeptService>, usize), ForkError>, ControllerError> {
    let what = "list Services";
    let too_many = |most: usize, done: &str| {
        let most = format!("it {done} at most {} MiB of them", most / MIB);
        Ok(Err(ForkError::TooManyServices { namespace: namespace.to_owned(), most }))
    };
    let requests = Request::new(Service::url_path(&(), Some(namespace)));
    let mut params = ListParams::default().limit(MOST_OBJECTS);
    let (mut kept, mut bytes, mut read) = (Vec::new(), 0, 0);
    loop {
        let request = requests.list(&params).map_err(kube::Error::BuildRequest).map_err(ControllerError::api(what))?;
        let text = client.request_text(request).await.map_err(ControllerError::api(what))?;
        read += text.len();
        let page: ObjectList<KeptService> =
            serde_json::from_str(&text).map_err(ControllerError::shape("a list of Services"))?;
        drop(text);
        for service in page.items {
            let Some(selector) = service.spec.selector.as_ref().filter(|_| service.metadata.labels.is_none()) else {
                continue;
            };
            let ports = service.spec.ports.as_ref().map_or(0, |ports| ports.get().len());
            bytes += ONE_SERVICE + selector.get().len() + ports;
            kept.push(service);
        }
        if bytes > MOST_SERVICES {
            return too_many(MOST_SERVICES, "keeps");
        }
        match page.metadata.continue_.filter(|after| !after.is_empty()) {
            None => return Ok(Ok((kept, bytes))),
            Some(_) if read > MOST_READ => return too_many(MOST_READ, "reads"),
            Some(after) => params = params.continue_token(&after),
        }
    }
}

impl Room {
    fn known(&self, namespace: &str, asked: Instant) -> Option<Result<Arc<Services>, ForkError>> {
        let listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        let (_, result) = listed.get(namespace).filter(|(began, _)| *began >= asked)?;
        match result {
            Ok(services) => services.upgrade().map(Ok),
            Err(error) => Some(Err(error.clone())),
        }
    }

    fn note(&self, namespace: &str, began: Instant, result: &Result<Arc<Services>, ForkError>) {
        let mut listed = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        // What nobody has any more is of no use, and whoever waits for a refusal has seen it when the next list ends.
        listed.retain(|_, (_, result)| result.as_ref().is_ok_and(|services| services.strong_count() > 0));
        let result = result.as_ref().map(Arc::downgrade).map_err(Clone::clone);
        listed.insert(namespace.to_owned(), (began, result));
    }
}

#[cfg(test)]
#[path = "room_tests.rs"]
mod tests;
