//! Lists of bounded size: whatever the objects are that a page holds, a page is no more than so many bytes.
//!
//! A page that is asked for by a number of objects can be of any size: most objects are a few KiB, and somebody can make
//! hundreds of 1.4 MB. Small pages of small objects would be a thousand requests where a hundred do. So each list begins
//! with a few objects, the next page of it may have more if this one was small, and one that turns out too large is given
//! up in the middle and asked for again with fewer. It is a layer of the client, so that it holds for every list that asks
//! for pages, those of watches too.

use axum::body::{Body as Answered, Bytes, HttpBody};
use futures::future::BoxFuture;
use futures::{FutureExt as _, StreamExt as _};
use http::{Method, Request, Response, Uri, request};
use kube::client::Body;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use tower::{BoxError, Layer, Service, ServiceExt as _};
use url::form_urlencoded;

/// The most objects that a page has, whatever their size: making a page of large ones that is then given up costs the
/// API server, too.
pub const MOST_OBJECTS: u32 = 100;
/// With so many objects a list begins: ten of the largest that etcd takes are 15 MB.
const FIRST: u32 = 10;
/// The most bytes of a page.
const MOST_BYTES: usize = 4 * MIB;
/// The most bytes of an object that is larger than a page. etcd holds 1.5 MiB of an object, which grow as JSON: the names
/// of fields are longer, and some characters become six.
const MOST_ALONE: usize = 32 * MIB;
/// A page below this is followed by one of twice as many objects.
const SMALL: usize = MOST_BYTES / 4;
/// Lists whose pages' size is remembered.
const KEPT: usize = 1024;
const MIB: usize = 1024 * 1024;

/// Why a page could not be read.
#[derive(Debug, thiserror::Error)]
enum PageError {
    #[error("an object of {path} is larger than {} MiB: delete it, or what is in it that nobody needs", MOST_ALONE / MIB)]
    TooLarge { path: String },
    #[error("a page of {path} could not be asked for")]
    Request { path: String, source: http::Error },
}

/// Makes a client ask for pages that are bounded.
#[derive(Clone, Default)]
pub struct Pages(Arc<Mutex<HashMap<String, u32>>>);

impl<S> Layer<S> for Pages {
    type Service = Paged<S>;

    fn layer(&self, inner: S) -> Paged<S> {
        Paged { inner: Arc::new(tokio::sync::Mutex::new(inner)), pages: self.clone() }
    }
}

/// A service whose lists come in bounded pages.
pub struct Paged<S> {
    /// A lock, because kube's own services cannot be cloned. It is held until a request is on its way.
    inner: Arc<tokio::sync::Mutex<S>>,
    pages: Pages,
}

impl<S, B> Service<Request<Body>> for Paged<S>
where
    S: Service<Request<Body>, Response = Response<B>> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError> + Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    type Response = Response<Answered>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (inner, pages) = (self.inner.clone(), self.pages.clone());
        let Some(list) = List::of(&request) else {
            return async move { send(&inner, request).await }.boxed();
        };
        async move {
            let (head, _) = request.into_parts();
            let mut objects = pages.objects(&list);
            loop {
                let answer = send(&inner, list.request(&head, objects)?).await?;
                if !answer.status().is_success() {
                    return Ok(answer);
                }
                let (head, body) = answer.into_parts();
                let most = if objects > 1 { MOST_BYTES } else { MOST_ALONE };
                if let Some(text) = read(body, most).await? {
                    pages.note(&list, objects, text.len());
                    return Ok(Response::from_parts(head, Answered::from(text)));
                }
                if objects == 1 {
                    return Err(PageError::TooLarge { path: list.path }.into());
                }
                objects = (objects / 2).min(FIRST);
            }
        }
        .boxed()
    }
}

async fn send<S, B>(inner: &tokio::sync::Mutex<S>, request: Request<Body>) -> Result<Response<Answered>, BoxError>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<BoxError>,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let answer = {
        let mut inner = inner.lock().await;
        inner.ready().await.map_err(Into::into)?.call(request)
    };
    Ok(answer.await.map_err(Into::into)?.map(Answered::new))
}

/// The whole of a body; none where it is larger.
async fn read(body: Answered, most: usize) -> Result<Option<Vec<u8>>, BoxError> {
    let mut pieces = body.into_data_stream();
    let mut text = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece?;
        if text.len() + piece.len() > most {
            return Ok(None);
        }
        text.extend_from_slice(&piece);
    }
    Ok(Some(text))
}

/// A list that asks for pages.
struct List {
    path: String,
    /// All that is asked for but how many objects, and after which.
    query: Vec<(String, String)>,
    most: u32,
    after: Option<String>,
}

impl List {
    fn of<B>(request: &Request<B>) -> Option<Self> {
        let asked = request.uri().query().filter(|_| request.method() == Method::GET)?;
        let (mut query, mut most, mut after) = (Vec::new(), None::<u32>, None);
        for (name, value) in form_urlencoded::parse(asked.as_bytes()) {
            match &*name {
                "limit" => most = value.parse().ok(),
                "continue" => after = Some(value.into_owned()),
                "watch" => return None,
                _ => query.push((name.into_owned(), value.into_owned())),
            }
        }
        let most = most.filter(|most| *most > 0)?.min(MOST_OBJECTS);
        Some(Self { path: request.uri().path().to_owned(), query, most, after })
    }

    fn request(&self, head: &request::Parts, objects: u32) -> Result<Request<Body>, PageError> {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.query).append_pair("limit", &objects.to_string());
        if let Some(after) = &self.after {
            query.append_pair("continue", after);
        }
        let failed = |source: http::Error| PageError::Request { path: self.path.clone(), source };
        let uri: Uri =
            format!("{}?{}", self.path, query.finish()).parse().map_err(|error| failed(http::Error::from(error)))?;
        let mut request = Request::builder().method(Method::GET).uri(uri).body(Body::empty()).map_err(failed)?;
        request.headers_mut().clone_from(&head.headers);
        request.extensions_mut().clone_from(&head.extensions);
        Ok(request)
    }

    fn name(&self) -> String {
        self.query.iter().fold(self.path.clone(), |name, (field, value)| format!("{name}&{field}={value}"))
    }
}

impl Pages {
    /// How many objects the next page has.
    fn objects(&self, list: &List) -> u32 {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let next = list.after.as_ref().and_then(|_| known.get(&list.name()).copied());
        next.unwrap_or(FIRST).min(list.most)
    }

    fn note(&self, list: &List, objects: u32, bytes: usize) {
        let next = if bytes < SMALL { (objects * 2).min(MOST_OBJECTS) } else { objects };
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = list.name();
        if known.len() >= KEPT && !known.contains_key(&name) {
            known.clear();
        }
        known.insert(name, next);
    }
}

#[cfg(test)]
#[path = "pages_tests.rs"]
mod tests;
