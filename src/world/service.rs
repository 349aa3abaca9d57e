//! The world as a `tower` service of HTTP requests: what a `kube::Client` talks to.

use super::World;
use super::answer::{self, Body};
use super::ask::{self, Ask, Route, User, Verb};
use super::refusal::Refusal;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Request, Response, StatusCode};
use serde_json::{Value, json};
use std::convert::Infallible;
use std::task::{Context, Poll};

/// One connection to a world, made by one user.
#[derive(Clone)]
pub struct Service {
    world: World,
    user: User,
}

impl Service {
    pub(super) fn new(world: World, user: User) -> Self {
        Self { world, user }
    }
}

impl tower::Service<Request<kube::client::Body>> for Service {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let Self { world, user } = self.clone();
        Box::pin(async move {
            Ok(match world.serve(request, &user).await {
                Ok(response) => response,
                Err(refusal) => answer::refused(&refusal),
            })
        })
    }
}

impl World {
    async fn serve(&self, request: Request<kube::client::Body>, user: &User) -> Result<Response<Body>, Refusal> {
        let (head, body) = request.into_parts();
        let unread = |error: kube::Error| Refusal::bad_request(format!("the body cannot be read: {error}"));
        let body = body.collect_bytes().await.map_err(unread)?;
        self.answer(&head, user, body).await
    }

    async fn answer(&self, head: &http::request::Parts, user: &User, body: Bytes) -> Result<Response<Body>, Refusal> {
        let route = ask::route(&self.store().kinds, &head.method, &head.uri, &head.headers, user, body)?;
        let discovered = match route {
            Route::Object(ask) => return self.on_object(*ask).await,
            Route::Health => return Ok(answer::text(StatusCode::OK, "ok")),
            Route::Versions => json!({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}),
            Route::Version => json!({"major": "1", "minor": "36", "gitVersion": "v1.36.3", "gitCommit": "",
                "gitTreeState": "clean", "buildDate": "1970-01-01T00:00:00Z", "goVersion": "", "compiler": "", "platform": "linux/amd64"}),
            Route::Groups => self.groups(),
            Route::Group(group) => self.group(&group)?,
            Route::Resources { group, version } => self.resources(&group, &version)?,
        };
        Ok(answer::whole(StatusCode::OK, &discovered))
    }

    async fn on_object(&self, ask: Ask) -> Result<Response<Body>, Refusal> {
        let (code, body) = match ask.verb {
            Verb::Watch => return self.watch(&ask).map(answer::events),
            Verb::Get => (StatusCode::OK, self.get(&ask)?),
            Verb::List => (StatusCode::OK, self.list(&ask)?),
            Verb::Create => (StatusCode::CREATED, Box::pin(self.create(&ask)).await?),
            Verb::Update => coded(Box::pin(self.update(&ask)).await?),
            Verb::Patch => coded(Box::pin(self.patch(&ask)).await?),
            Verb::Delete => (StatusCode::OK, Box::pin(self.delete(&ask)).await?),
            Verb::DeleteCollection => (StatusCode::OK, Box::pin(self.delete_collection(&ask)).await?),
        };
        let object = body["kind"] != "Status" && !matches!(ask.verb, Verb::List | Verb::DeleteCollection);
        let body = if ask.metadata_only && object { super::read::metadata_of(&body) } else { body };
        Ok(answer::whole(code, &body))
    }
}

/// 201 for what was created by an update or an apply.
fn coded((created, body): (bool, Value)) -> (StatusCode, Value) {
    (if created { StatusCode::CREATED } else { StatusCode::OK }, body)
}
