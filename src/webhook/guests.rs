//! Who is connected to a port, and who has to go when there are too many: whoever has not shown lately that it knows the
//! token is a stranger, and strangers only ever cost each other their connections.
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
    /// For so long after the last request with the token a connection is a known one.
    pub vouched: Duration,
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
    strangers: BTreeMap<u64, Seat>,
    known: HashMap<u64, Seat>,
}

/// The place of one connection.
#[derive(Clone, Debug)]
struct Seat {
    from: IpAddr,
    sent_away: CancellationToken,
    /// When it brought the token last, and whether that counts still.
    vouch: Arc<Vouch>,
}

#[derive(Debug, Default)]
struct Vouch {
    holds: AtomicBool,
    until: Mutex<Option<Instant>>,
}

/// One connection; it is in the extensions of each of its requests.
#[derive(Clone, Debug)]
pub struct Caller(Arc<Guest>);

#[derive(Debug)]
struct Guest {
    number: u64,
    vouch: Arc<Vouch>,
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
        (present.strangers.len(), present.known.len())
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn enter(self: &Arc<Self>, from: IpAddr) -> Caller {
        self.enter_at(from, Instant::now())
    }

    fn enter_at(self: &Arc<Self>, from: IpAddr, now: Instant) -> Caller {
        let (sent_away, vouch) = (CancellationToken::new(), Arc::<Vouch>::default());
        let mut present = self.present();
        let number = present.next;
        present.next += 1;
        let seat = Seat { from: network(from), sent_away: sent_away.clone(), vouch: vouch.clone() };
        present.strangers.insert(number, seat);
        present.settle(self.bounds, now);
        drop(present);
        Caller(Arc::new(Guest { number, vouch, sent_away, guests: self.clone() }))
    }
}

impl Vouch {
    fn until(&self) -> Option<Instant> {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it counts until then; not at all where there is no time.
    fn set(&self, until: Option<Instant>) {
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = until;
        self.holds.store(until.is_some(), Ordering::Release);
    }
}

impl Present {
    /// Whoever has not brought the token for long is a stranger again, and of strangers no more stay than there is room
    /// for.
    fn settle(&mut self, bounds: Bounds, now: Instant) {
        let late = self.known.iter().filter(|(_, seat)| seat.vouch.until().is_none_or(|until| until <= now));
        let late: Vec<u64> = late.map(|(number, _)| *number).collect();
        for number in late {
            self.estrange(number);
        }
        while self.strangers.len() > bounds.strangers {
            self.send_one_away();
        }
    }

    fn estrange(&mut self, number: u64) {
        if let Some(seat) = self.known.remove(&number) {
            seat.vouch.set(None);
            self.strangers.insert(number, seat);
        }
    }

    /// The oldest of the network that has the most, so that nobody can take the places of all others by coming often.
    fn send_one_away(&mut self) {
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        for seat in self.strangers.values() {
            *counts.entry(seat.from).or_default() += 1;
        }
        let most = counts.values().max().copied().unwrap_or_default();
        let first = self.strangers.iter().find(|(_, seat)| counts.get(&seat.from) == Some(&most));
        if let Some(number) = first.map(|(number, _)| *number)
            && let Some(seat) = self.strangers.remove(&number)
        {
            seat.sent_away.cancel();
        }
    }
}

impl Caller {
    /// Whoever is at the other end has just shown that it knows the token: for a while no stranger can cost it its
    /// connection.
    pub fn vouch(&self) {
        self.vouch_at(Instant::now());
    }

    fn vouch_at(&self, now: Instant) {
        let Guest { number, guests, vouch, .. } = &*self.0;
        let until = Some(now + guests.bounds.vouched);
        let mut present = guests.present();
        if present.known.contains_key(number) {
            vouch.set(until);
            return;
        }
        let Some(seat) = present.strangers.remove(number) else { return };
        if present.known.len() >= guests.bounds.known {
            present.settle(guests.bounds, now);
        }
        if present.known.len() < guests.bounds.known {
            present.known.insert(*number, seat);
            vouch.set(until);
        } else {
            present.strangers.insert(*number, seat);
        }
    }

    /// Whoever is at the other end has just shown that it does not know the token, whatever came before.
    pub fn refuse(&self) {
        let mut present = self.0.guests.present();
        present.estrange(self.0.number);
        present.settle(self.0.guests.bounds, Instant::now());
    }

    fn is_known(&self) -> bool {
        self.0.vouch.holds.load(Ordering::Acquire)
    }

    /// Until when the other end is known if it says nothing more; a stranger from now on where that is over.
    fn known_until(&self) -> Option<Instant> {
        self.0.guests.present().settle(self.0.guests.bounds, Instant::now());
        self.0.vouch.until()
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut present = self.guests.present();
        present.known.remove(&self.number);
        present.strangers.remove(&self.number);
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
    sent_away: Pin<Box<WaitForCancellationFutureOwned>>,
    /// Until when a stranger has to be done, or a known one to show the token again.
    timer: Pin<Box<Sleep>>,
    stage: Stage,
}

/// What the other end is, as far as its timer knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Silent,
    Speaking,
    Known,
}

impl<I> Watched<I> {
    fn new(inner: I, caller: Caller) -> Self {
        let sent_away = Box::pin(caller.0.sent_away.clone().cancelled_owned());
        let timer = Box::pin(tokio::time::sleep(caller.0.guests.bounds.silent));
        Self { inner, caller, sent_away, timer, stage: Stage::Silent }
    }

    fn check(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        match (self.stage, self.caller.is_known()) {
            (Stage::Known, false) => self.is_stranger_again(),
            (Stage::Silent | Stage::Speaking, true) => self.turn(Stage::Known, self.caller.0.guests.bounds.vouched),
            _ => {}
        }
        if self.sent_away.as_mut().poll(context).is_ready() {
            return Err(sent_away());
        }
        while self.timer.as_mut().poll(context).is_ready() {
            if self.stage != Stage::Known {
                return Err(too_slow());
            }
            match self.caller.known_until() {
                Some(until) => self.timer.as_mut().reset(until),
                None => self.is_stranger_again(),
            }
        }
        Ok(())
    }

    /// It may be in the middle of something, and has as long for that as any stranger has.
    fn is_stranger_again(&mut self) {
        self.turn(Stage::Speaking, self.caller.0.guests.bounds.speaking);
    }

    fn turn(&mut self, stage: Stage, limit: Duration) {
        self.stage = stage;
        self.timer.as_mut().reset(Instant::now() + limit);
    }

    fn has_said_something(&mut self, context: &mut Context<'_>) {
        if self.stage == Stage::Silent {
            self.turn(Stage::Speaking, self.caller.0.guests.bounds.speaking);
            // Whatever it is, it is looked at again before the next wait.
            let _ = self.timer.as_mut().poll(context);
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
#[path = "guests_tests.rs"]
mod tests;
