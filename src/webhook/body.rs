//! The body of a call that knows the token: read to its end whatever comes, with a bound on what all of them take
//! together.
//!
//! An answer that leaves before the body is read makes the API server tell its user the URL, and the token in it. So a
//! body is read even if nothing is to become of it; what is not kept costs no more than one piece of it.

use super::review::{Answer, Request, Review};
use crate::plan::cost::{self, Cost};
use crate::plan::message;
use crate::plan::timing::ANSWER_MARGIN;
use axum::body::{Body, BodyDataStream, Bytes, HttpBody as _};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Json, Response};
use futures::StreamExt as _;
use serde::de::{DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

/// The largest body that is looked at. The API server takes objects of 3 MB, and escapes each byte to six; an update
/// carries two.
const LARGEST: usize = 48 * MIB;
/// The largest body that is read to its end at all.
const ENDLESS: usize = 256 * MIB;
/// What parsed objects may take for one review. An object that etcd can hold takes half of it at the very most.
const MOST_OBJECTS: usize = 20 * MIB;
/// Reviews up to this size wait for no larger ones.
const SMALL: usize = 256 * KIB;
/// So many larger ones are received at once, or wait for room; more are told to come again once they have been read, so that
/// not all of them are read in a hurry when their patience ends.
const LARGE_AT_ONCE: usize = 16;
/// So many copies of its objects a review makes while it is planned and run.
const COPIES: usize = 4;
/// Parsing of more than this is no work for those that answer others.
const QUICK: usize = 256 * KIB;
/// What is kept of a body that nothing becomes of: its UID is at the beginning.
const BEGINNING: usize = 16 * KIB;
const BUSY_GAP: Duration = Duration::from_secs(2);
const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;

/// What the bodies of all calls may take together. Whoever waits for room waits in turn, and is told to come again
/// where it takes too long.
#[derive(Debug)]
pub struct Room {
    small: Share,
    large: Share,
}

/// Who has room for its text waits for room for its objects and never the other way round, so that no two wait for each
/// other. One permit is a KiB.
#[derive(Debug)]
struct Share {
    places: Semaphore,
    texts: Part,
    objects: Part,
}

#[derive(Debug)]
struct Part {
    permits: Arc<Semaphore>,
    all: usize,
}

/// The room of a review, for as long as its objects live.
#[derive(Debug)]
pub struct Held {
    _objects: OwnedSemaphorePermit,
}

impl Default for Room {
    fn default() -> Self {
        Self {
            small: Share {
                places: Semaphore::new(Semaphore::MAX_PERMITS),
                texts: Part::new(8 * MIB),
                objects: Part::new(16 * MIB),
            },
            large: Share {
                places: Semaphore::new(LARGE_AT_ONCE),
                texts: Part::new(LARGEST),
                objects: Part::new(64 * MIB),
            },
        }
    }
}

impl Part {
    fn new(bytes: usize) -> Self {
        Self { permits: Arc::new(Semaphore::new(bytes / KIB)), all: bytes / KIB }
    }

    /// Room for so many bytes, or for as many as there are.
    async fn take(&self, bytes: usize, until: Instant) -> Option<OwnedSemaphorePermit> {
        let permits = bytes.div_ceil(KIB).clamp(1, self.all) as u32;
        timeout_at(until, self.permits.clone().acquire_many_owned(permits)).await.ok()?.ok()
    }
}

impl Room {
    /// The request in the review that `body` holds, with the room that it takes; or the answer where there is none. The
    /// answer must leave by `deadline`; half of the time until then may be spent waiting for room.
    pub async fn receive(&self, body: Body, deadline: Instant) -> Result<(Request, Held), Response> {
        let now = Instant::now();
        let patience = now + deadline.saturating_duration_since(now) / 2;
        let announced = body.size_hint().exact().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let mut incoming = Incoming { body: body.into_data_stream(), until: deadline + ANSWER_MARGIN / 2 };
        let most = announced.unwrap_or(LARGEST);
        if most > LARGEST {
            return Err(incoming.refuse(Vec::new(), too_large()).await);
        }
        let share = if most <= SMALL { &self.small } else { &self.large };
        let Ok(_place) = share.places.try_acquire() else {
            return Err(incoming.refuse(Vec::new(), busy()).await);
        };
        let Some(text_room) = share.texts.take(most, patience).await else {
            return Err(incoming.refuse(Vec::new(), busy()).await);
        };
        let text = incoming.all(announced).await?;

        let (text, cost) = off_the_way(text, |text| (cost::of(&text), text)).await.map(|(cost, text)| (text, cost))?;
        if cost.objects > MOST_OBJECTS {
            return Err(about(&text, too_many_fields(cost)));
        }
        let weight = cost.objects * COPIES + cost.parsing;
        // A small text of tiny objects is no small review.
        let share = if weight <= MIB { share } else { &self.large };
        let Some(objects) = share.objects.take(weight, patience.max(Instant::now())).await else {
            return Err(about(&text, busy()));
        };
        let request = off_the_way(text, move |text| {
            let request = request(&text);
            drop((text, text_room));
            request
        });
        let request = request.await?.map_err(|answer| *answer)?;
        Ok((*request, Held { _objects: objects }))
    }
}

/// A body on its way in.
struct Incoming {
    body: BodyDataStream,
    until: Instant,
}

impl Incoming {
    async fn next(&mut self) -> Result<Option<Bytes>, Response> {
        match timeout_at(self.until, self.body.next()).await {
            Ok(Some(Ok(piece))) => Ok(Some(piece)),
            Ok(None) => Ok(None),
            Ok(Some(Err(_))) => Err(hang_up(StatusCode::BAD_REQUEST)),
            Err(_) => Err(hang_up(StatusCode::REQUEST_TIMEOUT)),
        }
    }

    /// The whole of it, or the refusal of one that is larger than it may be.
    async fn all(&mut self, announced: Option<usize>) -> Result<Bytes, Response> {
        let mut text = Vec::with_capacity(announced.unwrap_or(SMALL));
        while let Some(piece) = self.next().await? {
            if text.len() + piece.len() > LARGEST {
                text.truncate(BEGINNING);
                text.shrink_to_fit();
                return Err(self.refuse(text, too_large()).await);
            }
            text.extend_from_slice(&piece);
        }
        Ok(text.into())
    }

    /// Reads on to the end, keeping next to nothing, and answers then. `beginning` has been read already.
    async fn refuse(&mut self, mut beginning: Vec<u8>, answer: Answer) -> Response {
        let mut read = 0;
        loop {
            match self.next().await {
                Ok(Some(piece)) => {
                    read += piece.len();
                    let room = BEGINNING.saturating_sub(beginning.len()).min(piece.len());
                    beginning.extend_from_slice(&piece[..room]);
                }
                Ok(None) => return about(&beginning, answer),
                Err(response) => return response,
            }
            if read > ENDLESS {
                return hang_up(StatusCode::PAYLOAD_TOO_LARGE);
            }
        }
    }
}

/// Does `work` where it keeps nobody waiting.
async fn off_the_way<T: Send + 'static>(
    text: Bytes,
    work: impl FnOnce(Bytes) -> T + Send + 'static,
) -> Result<T, Response> {
    if text.len() <= QUICK {
        return Ok(work(text));
    }
    let done = tokio::task::spawn_blocking(move || work(text)).await;
    done.map_err(|_| StatusCode::INTERNAL_SERVER_ERROR.into_response())
}

/// The request in a review, or the answer to a text that holds none.
fn request(text: &[u8]) -> Result<Box<Request>, Box<Response>> {
    let answer = match serde_json::from_slice(text) {
        Ok(Review { request: Some(request) }) => return Ok(Box::new(request)),
        Ok(Review { request: None }) => (StatusCode::BAD_REQUEST, "the AdmissionReview has no request").into_response(),
        Err(error) => match uid(text) {
            Some(uid) => {
                let why = format!("Sluice cannot read this object: {error}");
                Json(Answer::deny(message::cut(&why, message::DENIAL_LIMIT)).into_review(&uid)).into_response()
            }
            None => (StatusCode::BAD_REQUEST, format!("this is no AdmissionReview: {error}")).into_response(),
        },
    };
    Err(Box::new(answer))
}

/// `answer` to the review that begins with `text`.
fn about(text: &[u8], answer: Answer) -> Response {
    match uid(text) {
        Some(uid) => Json(answer.into_review(&uid)).into_response(),
        None => (StatusCode::BAD_REQUEST, "this is no AdmissionReview: it has no request.uid").into_response(),
    }
}

/// The UID of a review's request, of which `text` may be the beginning only. Nothing else of it is kept.
fn uid(text: &[u8]) -> Option<String> {
    let mut found = None;
    let mut parser = serde_json::Deserializer::from_slice(text);
    // Where the text ends early the UID has been seen before that, or never comes.
    let _ = Field { path: &["request", "uid"], found: &mut found }.deserialize(&mut parser);
    found
}

/// The text of the field at `path`.
struct Field<'a> {
    path: &'a [&'static str],
    found: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for Field<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.path.is_empty() { deserializer.deserialize_str(self) } else { deserializer.deserialize_map(self) }
    }
}

impl<'de> Visitor<'de> for Field<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("an AdmissionReview")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        *self.found = Some(text.to_owned());
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<std::borrow::Cow<'de, str>>()? {
            match self.path.split_first() {
                Some((first, rest)) if name == *first => {
                    map.next_value_seed(Field { path: rest, found: &mut *self.found })?;
                }
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(())
    }
}

fn too_large() -> Answer {
    refusal(format!("the change is larger than the {} MiB that Sluice takes: make the object smaller", LARGEST / MIB))
}

fn too_many_fields(cost: Cost) -> Answer {
    refusal(format!(
        "the object has so many fields and items that it would take {} MiB of memory, and Sluice takes {} MiB at most: keep fewer of them in one object",
        cost.objects.div_ceil(MIB),
        MOST_OBJECTS / MIB
    ))
}

fn refusal(message: String) -> Answer {
    Answer::refusal(413, "RequestEntityTooLarge", message, None)
}

fn busy() -> Answer {
    Answer::later("Sluice is busy with other large changes; make the same change again", BUSY_GAP)
}

/// For a body whose end is not waited for.
fn hang_up(status: StatusCode) -> Response {
    let mut response = status.into_response();
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

#[cfg(test)]
#[path = "body_tests.rs"]
mod tests;
