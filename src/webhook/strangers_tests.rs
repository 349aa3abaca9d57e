//! What strangers can do to the servers, tried over real connections.

use super::super::super::guests::Caller;
use super::*;
use axum::Extension;
use tokio::net::TcpSocket;

const BOUNDS: Bounds = Bounds {
    strangers: 16,
    known: 4,
    vouched: SOON,
    handshake: Duration::from_millis(800),
    silent: Duration::from_millis(1500),
    speaking: Duration::from_millis(800),
};
const SOON: Duration = Duration::from_secs(10);

/// A server whose `/known` lets the connection be known, as the right token does, and `/unknown` not, as a wrong one.
fn start_guarded(certificates: &Certificates, bounds: Bounds) -> (SocketAddr, Arc<Guests>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let serving = Serving::new(names());
    serving.offer(certificates.clone(), Timestamp::now(), Patience::Hold).unwrap();
    let vouch = |Extension(caller): Extension<Caller>| async move {
        caller.vouch();
        "ok"
    };
    let refuse = |Extension(caller): Extension<Caller>| async move {
        caller.refuse();
        "ok"
    };
    let routes = Router::new().route("/now", get(|| async { "ok" }));
    let router = routes.route("/known", get(vouch)).route("/unknown", get(refuse));
    let listening = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, guests) = (listening.address, Guests::new(bounds));
    let config = tls(serving.into()).unwrap();
    tokio::spawn(serve_guests(listening, router, config, guests.clone(), CancellationToken::new(), Drain::default()));
    (address, guests)
}

/// Whoever has another address on this machine.
async fn connect_from(from: &str, address: SocketAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
    socket.connect(address).await.unwrap()
}

async fn is_closed(stream: &mut (impl tokio::io::AsyncRead + Unpin)) -> bool {
    let mut buffer = [0; 4096];
    let closed = async {
        while let Ok(read) = stream.read(&mut buffer).await {
            if read == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(SOON, closed).await.is_ok()
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < SOON, "{what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn t04_unfinished_headers_keep_few_connections_and_cost_the_api_server_none() {
    let certificates = issue();
    let (address, guests) = start_guarded(&certificates, BOUNDS);
    let mut known = connect(address, &certificates, NAME, &["http/1.1"]).await.unwrap();
    ask(&mut known, "/known").await.unwrap();

    let mut waiting = Vec::new();
    for _ in 0..120 {
        // Those that are sent away may learn it in the middle of their handshake.
        if let Ok(mut stream) = connect(address, &certificates, NAME, &["http/1.1"]).await {
            let _ = stream.write_all(format!("GET /now HTTP/1.1\r\nX-Long: {}", "x".repeat(8000)).as_bytes()).await;
            waiting.push(stream);
        }
        let (strangers, known) = guests.count();
        assert!(strangers <= BOUNDS.strangers && known == 1, "{strangers} strangers, {known} known");
    }
    assert!(ask(&mut known, "/now").await.unwrap().starts_with("HTTP/1.1 200"));
    until("unfinished headers are given up", || guests.count().0 == 0).await;
    for stream in &mut waiting {
        assert!(is_closed(stream).await);
    }
    tokio::time::sleep(BOUNDS.speaking).await;
    assert!(ask(&mut known, "/now").await.is_ok(), "an idle connection of who is known lives on");
}

#[tokio::test]
async fn t04_a_connection_is_closed_that_was_known_and_brings_no_token_any_more() {
    let certificates = issue();
    let vouched = Duration::from_secs(1);
    let (address, guests) = start_guarded(&certificates, Bounds { vouched, ..BOUNDS });
    let mut idle = connect(address, &certificates, NAME, &["http/1.1"]).await.unwrap();
    ask(&mut idle, "/known").await.unwrap();
    let began = Instant::now();
    assert!(is_closed(&mut idle).await);
    assert!(began.elapsed() > vouched, "{:?}", began.elapsed());
    until("nobody is left", || guests.count() == (0, 0)).await;
    let mut used = connect(address, &certificates, NAME, &["http/1.1"]).await.unwrap();
    for _ in 0..5 {
        ask(&mut used, "/known").await.unwrap();
        tokio::time::sleep(vouched * 3 / 4).await;
        assert_eq!(guests.count(), (0, 1), "each request with the token counts anew");
    }
}

#[tokio::test]
async fn t04_a_wrong_token_has_a_known_connection_closed_as_a_strangers() {
    let certificates = issue();
    let (address, guests) = start_guarded(&certificates, BOUNDS);
    let mut caller = connect(address, &certificates, NAME, &["http/1.1"]).await.unwrap();
    ask(&mut caller, "/known").await.unwrap();
    ask(&mut caller, "/unknown").await.unwrap();
    assert_eq!(guests.count(), (1, 0));
    let began = Instant::now();
    assert!(is_closed(&mut caller).await);
    assert!(began.elapsed() < BOUNDS.speaking * 2, "{:?}", began.elapsed());
}

#[tokio::test]
async fn t04_many_connections_from_one_place_cost_another_place_none() {
    let certificates = issue();
    let (address, guests) = start_guarded(&certificates, Bounds { handshake: SOON, silent: SOON, ..BOUNDS });
    let mut other = connect_from("127.0.0.2", address).await;
    until("it is counted", || guests.count().0 == 1).await;
    let mut flood = Vec::new();
    for _ in 0..200 {
        flood.push(TcpStream::connect(address).await.unwrap());
    }
    assert!(is_closed(&mut flood[0]).await, "the oldest had to go");
    assert_eq!(guests.count(), (BOUNDS.strangers, 0));
    let mut byte = [0];
    let read = tokio::time::timeout(Duration::from_millis(300), other.read(&mut byte)).await;
    assert!(read.is_err(), "the other was sent away: {read:?}");
}

#[tokio::test]
async fn t04_a_stranger_has_little_time_whichever_protocol_it_speaks_and_wherever_it_stops() {
    let certificates = issue();
    let (address, guests) = start_guarded(&certificates, BOUNDS);
    // No handshake, half of a handshake, silence, an HTTP/2 preface with settings, a whole request, a slow body.
    let mut raw = [TcpStream::connect(address).await.unwrap(), TcpStream::connect(address).await.unwrap()];
    raw[1].write_all(&[22, 3, 1, 0, 200, 1]).await.unwrap();
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    let request: &[u8] = b"GET /now HTTP/1.1\r\nHost: a\r\n\r\n";
    let body: &[u8] = b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 9999999\r\n\r\nabc";
    let mut streams = Vec::new();
    for (alpn, said) in
        [("http/1.1", &b""[..]), ("h2", b""), ("h2", preface), ("http/1.1", request), ("http/1.1", body)]
    {
        let mut stream = connect(address, &certificates, NAME, &[alpn]).await.unwrap();
        stream.write_all(said).await.unwrap();
        streams.push(stream);
    }
    for stream in &mut raw {
        assert!(is_closed(stream).await);
    }
    for stream in &mut streams {
        assert!(is_closed(stream).await);
    }
    until("nobody is left", || guests.count() == (0, 0)).await;
}

#[tokio::test]
async fn t04_headers_that_are_too_long_or_too_many_are_refused() {
    let certificates = issue();
    let (address, _) = start_guarded(&certificates, BOUNDS);
    let long = format!("X-Long: {}\r\n", "x".repeat(BUFFER));
    let many = (0..=MOST_HEADERS).map(|at| format!("X-{at}: a\r\n")).collect::<String>();
    for headers in [long, many] {
        let mut stream = connect(address, &certificates, NAME, &["http/1.1"]).await.unwrap();
        stream.write_all(format!("GET /known HTTP/1.1\r\n{headers}\r\n").as_bytes()).await.unwrap();
        let mut answer = vec![0; 200];
        let read = stream.read(&mut answer).await.unwrap();
        let answer = String::from_utf8_lossy(&answer[..read]).into_owned();
        assert!(answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
}

#[tokio::test]
async fn t04_probes_are_answered_while_a_thousand_connections_wait() {
    let listening = listen("127.0.0.1:0".parse().unwrap()).unwrap();
    let (address, guests) = (listening.address, Guests::new(Bounds { strangers: 32, ..PROBE_BOUNDS }));
    let router = Router::new().route("/livez", get(|| async { "ok" }));
    tokio::spawn(serve_probes(listening, router, guests.clone()));
    let mut waiting = Vec::new();
    for at in 0..1000 {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let _ = stream.write_all(b"GET /livez HTTP/1.1\r\nX-Unfinished: ").await;
        waiting.push(stream);
        if at % 100 == 0 {
            let mut kubelet = connect_from("127.0.0.3", address).await;
            kubelet.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            kubelet.read_to_string(&mut answer).await.unwrap();
            assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
        }
    }
    until("the newest stay alone", || guests.count().0 <= 32).await;
    assert!(is_closed(&mut waiting[0]).await);
}
