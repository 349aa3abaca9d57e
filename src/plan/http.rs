//! The rules of the `http` step: which targets may be called, which answers are success, and when to try again.

mod address;

pub use address::{address, encoded};

use http::{HeaderName, HeaderValue};
use k8s_openapi::jiff::{Timestamp, fmt::rfc2822};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use url::Url;

/// How often a call is tried again.
pub const RETRIES: u32 = 4;
/// The pause before a call is tried again for the first time; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// The targets that `http` steps may call; none by default.
#[derive(Clone, Debug, Default)]
pub struct Allowed(Vec<Target>);

impl Allowed {
    pub fn new(targets: Vec<Target>) -> Self {
        Self(targets)
    }

    /// Whether `url` may be called; if not, why and what to do.
    pub fn check(&self, url: &Url) -> Result<(), String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!("{}: is neither http nor https", url.scheme()));
        }
        let (Some(host), Some(port)) = (url.host_str(), url.port_or_known_default()) else {
            return Err("has no host".to_owned());
        };
        if self.0.iter().any(|target| target.covers(host, port)) {
            return Ok(());
        }
        let known: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        let known = if known.is_empty() { "none is".to_owned() } else { format!("allowed are {}", known.join(", ")) };
        Err(format!(
            "{host}:{port} is no target that plugins may call ({known}): a cluster admin adds it to http.allowedTargets in the chart's values"
        ))
    }

    /// [`Allowed::check`] of a URL that still has expressions, as far as its target is written out.
    pub fn check_template(&self, url: &str) -> Result<(), String> {
        let written = url.split("${").next().unwrap_or(url);
        let has_target = written.len() == url.len()
            || written.split_once("://").is_some_and(|(_, rest)| rest.contains(['/', '?', '#']));
        if !has_target {
            return Ok(());
        }
        parse(written).and_then(|url| self.check(&url))
    }
}

/// A URL, or what is wrong with it.
pub fn parse(url: &str) -> Result<Url, String> {
    Url::parse(url).map_err(|e| format!("{url:?} is no URL ({e}): write it as in http://router.shop.svc/hooks"))
}

/// What a connection lives by, and the host, which could be another than the list of targets allows.
const UNSETTABLE: [&str; 10] = [
    "host",
    "connection",
    "content-length",
    "expect",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// The name of a header that a step may set, or what is wrong with it.
pub fn header_name(name: &str) -> Result<HeaderName, String> {
    let parsed = HeaderName::try_from(name)
        .map_err(|_| format!("{name:?} is no name of a header: use letters, digits and -, as in X-Token"))?;
    if UNSETTABLE.contains(&parsed.as_str()) {
        return Err(format!("{parsed} cannot be set: the URL and the body decide what it is; take it away"));
    }
    Ok(parsed)
}

/// The value of a header, or what is wrong with it. Never says the value.
pub fn header_value(value: Vec<u8>) -> Result<HeaderValue, String> {
    let hidden = value.iter().find(|byte| byte.is_ascii_control() && **byte != b'\t').copied();
    HeaderValue::try_from(value).map_err(|error| match hidden {
        Some(b'\r' | b'\n') => "its value has a line break, and a header is one line: take it away".to_owned(),
        Some(byte) => format!("its value has the control character 0x{byte:02x}: take it away"),
        None => error.to_string(),
    })
}

/// A host, or `*.DOMAIN` for every host in it, and perhaps a port; every port without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: Option<u16>,
}

impl Target {
    fn covers(&self, host: &str, port: u16) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let is_host = match self.host.strip_prefix("*.") {
            Some(domain) => host.strip_suffix(domain).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
            None => self.host == "*" || self.host == host,
        };
        is_host && self.port.is_none_or(|own| own == port)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong =
            || format!("{text:?} is no target: write HOST, *.DOMAIN, HOST:PORT or *.DOMAIN:PORT, without http://");
        // The last colon of an IPv6 address in brackets is its port's only after the bracket.
        let (host, port) = match text.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, Some(port.parse().map_err(|_| wrong())?)),
            _ => (text, None),
        };
        let bare = host.strip_prefix("*.").unwrap_or(host);
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let is_address = bare.starts_with('[') && bare.ends_with(']') && Url::parse(&format!("http://{bare}")).is_ok();
        if host != "*" && !is_address && (bare.is_empty() || !bare.chars().all(is_name)) {
            return Err(wrong());
        }
        Ok(Self { host: host.trim_end_matches('.').to_ascii_lowercase(), port })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// Whether an answer with this code is what was asked for.
pub fn succeeded(code: u16, accept: &[u16]) -> bool {
    (200..300).contains(&code) || accept.contains(&code)
}

/// Whether another try may bring another answer.
pub fn is_transient(code: u16) -> bool {
    code == 429 || (500..600).contains(&code)
}

/// The pause before try number `tried` + 1, as the server wishes where it says so (RFC 9110, 10.2.3).
pub fn pause(tried: u32, retry_after: Option<&str>, now: Timestamp) -> Duration {
    let own = FIRST_PAUSE * 2_u32.pow(tried.saturating_sub(1).min(RETRIES));
    retry_after.and_then(|text| wished(text.trim(), now)).map_or(own, |wished| wished.max(FIRST_PAUSE))
}

fn wished(text: &str, now: Timestamp) -> Option<Duration> {
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let at = rfc2822::parse(text).ok()?.timestamp();
    Some(Duration::try_from(at.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn allowed(targets: &[&str]) -> Allowed {
        Allowed::new(targets.iter().map(|target| target.parse().unwrap()).collect())
    }

    #[rstest]
    #[case(&["router.shop.svc"], "http://router.shop.svc/hook", true)]
    #[case(&["router.shop.svc"], "http://ROUTER.shop.svc.:8080/hook", true)]
    #[case(&["router.shop.svc:80"], "http://router.shop.svc/hook", true)]
    #[case(&["router.shop.svc:80"], "https://router.shop.svc/hook", false)]
    #[case(&["*.shop.svc"], "http://a.b.shop.svc", true)]
    #[case(&["*.shop.svc"], "http://shop.svc", false)]
    #[case(&["*.shop.svc"], "http://evilshop.svc", false)]
    #[case(&["*.shop.svc"], "http://x@evil/.shop.svc", false)]
    #[case(&["*"], "http://169.254.169.254/latest", true)]
    #[case(&[], "http://169.254.169.254/latest", false)]
    #[case(&["[::1]:8080"], "http://[::1]:8080/", true)]
    #[case(&["[::1]"], "http://[::2]/", false)]
    #[case(&["127.0.0.1"], "http://2130706433/", true)]
    #[case(&["*"], "ftp://a/", false)]
    fn only_what_an_admin_allows_is_called(#[case] targets: &[&str], #[case] url: &str, #[case] right: bool) {
        assert_eq!(allowed(targets).check(&parse(url).unwrap()).is_ok(), right);
    }

    #[rstest]
    #[case("X-Token", true)]
    #[case("authorization", true)]
    #[case("Host", false)]
    #[case("Transfer-Encoding", false)]
    #[case("Content-Length", false)]
    #[case("x\r\ny", false)]
    #[case("", false)]
    fn t15_a_header_neither_changes_the_host_nor_the_frame(#[case] name: &str, #[case] right: bool) {
        assert_eq!(header_name(name).is_ok(), right);
    }

    #[rstest]
    #[case("Bearer a\tb", None)]
    #[case("a\r\nX-Admin: true", Some("line break"))]
    #[case("a\nb", Some("line break"))]
    #[case("a\0b", Some("control character 0x00"))]
    #[case("a\u{7f}", Some("control character 0x7f"))]
    fn t15_a_header_is_one_line(#[case] value: &str, #[case] why: Option<&str>) {
        match (header_value(value.into()), why) {
            (Ok(_), None) => {}
            (Err(said), Some(why)) => assert!(said.contains(why) && !said.contains("Admin"), "{said}"),
            (other, _) => panic!("{other:?}"),
        }
    }

    #[rstest]
    #[case("http://router")]
    #[case("")]
    #[case("*")]
    #[case("a b")]
    #[case("a:http")]
    #[case("*.")]
    #[case("a/b")]
    fn a_target_is_a_host(#[case] text: &str) {
        assert_eq!(text.parse::<Target>().is_ok(), text == "*");
    }

    #[rstest]
    #[case("http://router.shop/${params.path}", true)]
    #[case("http://evil/${params.path}", false)]
    #[case("http://${params.host}/x", true)]
    #[case("http://evil${params.rest}/x", true)]
    #[case("${params.url}", true)]
    #[case("nonsense", false)]
    fn a_target_that_is_written_out_is_known_early(#[case] url: &str, #[case] right: bool) {
        assert_eq!(allowed(&["router.shop"]).check_template(url).is_ok(), right);
    }

    #[rstest]
    #[case(1, None, 1)]
    #[case(3, None, 4)]
    #[case(1, Some("7"), 7)]
    #[case(1, Some("0"), 1)]
    #[case(2, Some("Fri, 02 Jan 2026 00:00:30 GMT"), 30)]
    #[case(2, Some("Thu, 01 Jan 2026 00:00:30 GMT"), 1)]
    #[case(2, Some("soon"), 2)]
    fn a_server_may_say_when_to_come_again(#[case] tried: u32, #[case] header: Option<&str>, #[case] seconds: u64) {
        let now = "2026-01-02T00:00:00Z".parse().unwrap();
        assert_eq!(pause(tried, header, now), Duration::from_secs(seconds));
    }
}
