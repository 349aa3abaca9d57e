//! Who is connected to a port, and who has to go when there are too many: whoever has not shown that it knows the token
//! is a stranger, and strangers only ever cost each other their connections.
//!
//! It wraps the acceptor of a server, so that a connection counts from the moment it is made.

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use futures::FutureExt as _;
use futures::future::BoxFuture;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::Layer as _;

/// What a port bears. Times are those of strangers; who is known has those of the HTTP server alone.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// So many strangers' connections at once.
    pub strangers: usize,
    /// So many known ones; more than that are answered, and stay strangers.
    pub known: usize,
    /// For a TLS handshake.
    pub handshake: Duration,
    /// For a connection on which nothing has been said yet.
    pub silent: Duration,
    /// From the first byte of a request on, whatever comes after it.
    pub speaking: Duration,
}

/// The connections of one port.
#[derive(Debug)]
pub struct Guests {
    bounds: Bounds,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    next: u64,
    /// In the order in which they came.
    strangers: BTreeMap<u64, (IpAddr, CancellationToken)>,
    known: usize,
}

/// One connection; it is in the extensions of each of its requests.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Guest>);

#[derive(Debug)]
struct Guest {
    number: u64,
    known: AtomicBool,
    sent_away: CancellationToken,
    guests: Arc<Guests>,
}

impl Guests {
    pub fn new(bounds: Bounds) -> Arc<Self> {
        Arc::new(Self { bounds, present: Mutex::default() })
    }

    /// Strangers' connections, and known ones.
    pub fn count(&self) -> (usize, usize) {
        let present = self.present();
        (present.strangers.len(), present.known)
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Caller {
        let sent_away = CancellationToken::new();
        let mut present = self.present();
        let number = present.next;
        present.next += 1;
        present.strangers.insert(number, (network(from), sent_away.clone()));
        if present.strangers.len() > self.bounds.strangers {
            present.send_one_away();
        }
        drop(present);
        Caller(Arc::new(Guest { number, known: AtomicBool::new(false), sent_away, guests: self.clone() }))
    }
}

impl Present {
    /// The oldest of the network that has the most, so that nobody can take the places of all others by coming often.
    fn send_one_away(&mut self) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for (from, _) in self.strangers.values() {
            *counts.entry(*from).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let first = self.strangers.iter().find(|(_, (from, _))| counts.get(from) == Some(&most));
        if let Some(number) = first.map(|(number, _)| *number)
            && let Some((_, sent_away)) = self.strangers.remove(&number)
        {
            sent_away.cancel();
        }
    }
}

impl Caller {
    /// Whoever is at the other end knows the token: from now on no stranger can cost it its connection.
    pub fn vouch(&self) {
        if self.is_known() {
            return;
        }
        let mut present = self.0.guests.present();
        if present.known < self.0.guests.bounds.known && present.strangers.remove(&self.0.number).is_some() {
            present.known += 1;
            self.0.known.store(true, Ordering::Release);
        }
    }

    fn is_known(&self) -> bool {
        self.0.known.load(Ordering::Acquire)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut present = self.guests.present();
        if self.known.load(Ordering::Acquire) {
            present.known -= 1;
        } else {
            present.strangers.remove(&self.number);
        }
    }
}

/// What counts as one place of origin: of IPv6 whoever has one address has its whole /64.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// An acceptor that counts whom `inner` accepts, and bounds what a stranger may take.
#[derive(Clone, Debug)]
pub struct Gate<A> {
    inner: A,
    guests: Arc<Guests>,
}

impl<A> Gate<A> {
    pub const fn new(inner: A, guests: Arc<Guests>) -> Self {
        Self { inner, guests }
    }
}

impl<A, S> Accept<TcpStream, S> for Gate<A>
where
    A: Accept<TcpStream, S>,
    A::Future: Send + 'static,
    A::Stream: Send + 'static,
    A::Service: Send + 'static,
{
    type Stream = Watched<A::Stream>;
    type Service = AddExtension<A::Service, Caller>;
    type Future = BoxFuture<'static, io::Result<(Self::Stream, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let bounds = self.guests.bounds;
        let entered = stream.peer_addr().map(|peer| self.guests.enter(peer.ip()));
        let accepted = self.inner.accept(stream, service);
        async move {
            let caller = entered?;
            let (stream, service) = tokio::select! {
                () = caller.0.sent_away.cancelled() => return Err(sent_away()),
                accepted = tokio::time::timeout(bounds.handshake, accepted) => accepted.map_err(|_| too_slow())??,
            };
            let service = Extension(caller.clone()).layer(service);
            Ok((Watched::new(stream, caller), service))
        }
        .boxed()
    }
}

/// A stream that fails once its stranger has to go.
#[derive(Debug)]
pub struct Watched<I> {
    inner: I,
    caller: Caller,
    /// None for whoever is known.
    limits: Option<StrangersLimits>,
}

#[derive(Debug)]
struct StrangersLimits {
    sent_away: Pin<Box<WaitForCancellationFutureOwned>>,
    timer: Pin<Box<Sleep>>,
    has_spoken: bool,
}

impl<I> Watched<I> {
    fn new(inner: I, caller: Caller) -> Self {
        let limits = StrangersLimits {
            sent_away: Box::pin(caller.0.sent_away.clone().cancelled_owned()),
            timer: Box::pin(tokio::time::sleep(caller.0.guests.bounds.silent)),
            has_spoken: false,
        };
        Self { inner, caller, limits: Some(limits) }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let Some(limits) = &mut self.limits else { return Ok(()) };
        if self.caller.is_known() {
            self.limits = None;
            return Ok(());
        }
        if limits.sent_away.as_mut().poll(context).is_ready() {
            return Err(sent_away());
        }
        if limits.timer.as_mut().poll(context).is_ready() {
            return Err(too_slow());
        }
        Ok(())
    }

    fn has_said_something(&mut self, context: &mut Context<'_>) {
        if let Some(limits) = self.limits.as_mut().filter(|limits| !limits.has_spoken) {
            limits.has_spoken = true;
            limits.timer.as_mut().reset(Instant::now() + self.caller.0.guests.bounds.speaking);
            // Whatever it is, it is looked at again before the next wait.
            let _ = limits.timer.as_mut().poll(context);
        }
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(context)?;
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.inner).poll_read(context, buffer);
        if buffer.filled().len() > before {
            self.has_said_something(context);
        }
        read
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_write_vectored(context, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(context)?;
        Pin::new(&mut self.inner).poll_shutdown(context)
    }
}

fn sent_away() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "others who do not know the token came after it")
}

fn too_slow() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the token was not brought in time")
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { strangers: 4, known: 2, handshake: Duration::ZERO, silent: Duration::ZERO, speaking: Duration::ZERO };

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
}
