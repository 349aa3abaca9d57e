//! What goes back over the wire.

use super::refusal::Refusal;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{Stream, StreamExt};
use http::{HeaderValue, Response, StatusCode, header};
use serde_json::Value;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

/// The body of an answer: whole, or events as they come.
pub enum Body {
    Whole(Option<Bytes>),
    Events(BoxStream<'static, Bytes>),
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        let next = match &mut *self {
            Self::Whole(bytes) => Poll::Ready(bytes.take()),
            Self::Events(events) => events.poll_next_unpin(context),
        };
        next.map(|bytes| bytes.map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

/// An answer with a JSON body.
pub fn whole(code: StatusCode, body: &Value) -> Response<Body> {
    with_type(code, "application/json", Body::Whole(Some(Bytes::from(body.to_string()))))
}

pub fn text(code: StatusCode, body: &'static str) -> Response<Body> {
    with_type(code, "text/plain; charset=utf-8", Body::Whole(Some(Bytes::from_static(body.as_bytes()))))
}

pub fn events(events: impl Stream<Item = Bytes> + Send + 'static) -> Response<Body> {
    with_type(StatusCode::OK, "application/json", Body::Events(events.boxed()))
}

pub fn refused(refusal: &Refusal) -> Response<Body> {
    let code = StatusCode::from_u16(refusal.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = whole(code, &refusal.body());
    let wait = refusal.status().details.as_ref().map_or(0, |details| details.retry_after_seconds);
    if wait > 0 {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(wait));
    }
    response
}

fn with_type(code: StatusCode, kind: &'static str, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = code;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
