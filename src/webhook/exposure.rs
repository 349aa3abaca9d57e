//! Whether a call may have gone wrong for the API server, which then shows whoever made the change the URL that it
//! called, and the token in it.
//!
//! It goes well only if the answer has the status 200 and left whole and in time. Anything else is noted: another
//! status, a caller that went away (its body was cut, its time was over, its own client left), an answer that was too
//! late.

use super::review;
use crate::certs::token::accept::Accepted;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use http_body::{Frame, SizeHint};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// An answer that leaves less than this before the caller's time is over may come too late.
const ON_ITS_WAY: Duration = Duration::from_millis(500);

/// Answers the call, made by the token that is `given`, and notes that as seen where the call may have gone wrong.
pub async fn watched(accepted: Arc<Accepted>, given: String, call: Request, next: Next) -> Response {
    let deadline = timeout(call.uri().query()).map(|timeout| Instant::now() + timeout.saturating_sub(ON_ITS_WAY));
    let mut outcome = Outcome { accepted, given, deadline, went_well: false };
    let response = next.run(call).await;
    if response.status() != StatusCode::OK {
        return response;
    }
    let (parts, body) = response.into_parts();
    if body.is_end_stream() {
        outcome.answered();
    }
    Response::from_parts(parts, Body::new(Watched { body, call: outcome }))
}

/// How long the API server waits for the answer, where the query of its call says so. Whatever else the query is, nothing
/// is answered for it before the body has been read.
pub(super) fn timeout(query: Option<&str>) -> Option<Duration> {
    let query = url::form_urlencoded::parse(query?.as_bytes());
    let given = query.into_iter().find(|(name, _)| name == "timeout").map(|(_, value)| value)?;
    review::timeout(&given)
}

/// How a call ends; dropped at any moment before it went well, it did not.
struct Outcome {
    accepted: Arc<Accepted>,
    given: String,
    deadline: Option<Instant>,
    went_well: bool,
}

impl Outcome {
    fn answered(&mut self) {
        self.went_well = self.deadline.is_none_or(|deadline| Instant::now() < deadline);
    }
}

impl Drop for Outcome {
    fn drop(&mut self) {
        if !self.went_well {
            self.accepted.note_exposed(&self.given);
        }
    }
}

/// A body that knows whether all of it was taken to be sent.
struct Watched {
    body: Body,
    call: Outcome,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = Pin::new(&mut self.body).poll_frame(context);
        match &frame {
            Poll::Ready(None) => self.call.answered(),
            Poll::Ready(Some(Ok(_))) if self.body.is_end_stream() => self.call.answered(),
            _ => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
#[path = "exposure_tests.rs"]
mod tests;
