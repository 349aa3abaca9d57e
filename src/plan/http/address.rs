//! The URL of an `http` step: what its author wrote says where it leads, and what expressions give fills places in it and
//! makes no new ones.

use crate::plan::message::cut;
use crate::plan::template::Piece;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use url::Url;

/// All but what means nothing anywhere in a URL (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// The longest name of a host, in bytes (RFC 1123, 2.1).
const LONGEST_HOST: usize = 253;

/// `text` for any one place of a URL: nothing in it ends that place.
pub fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// The URL of these parts, or what is wrong with it.
///
/// In the path and behind it a value is encoded. In the host it must be a host, or a part of one label; as a scheme or a
/// port it must be one. A value that begins the URL must be a scheme, or scheme, host and port. What `url.raw` gave is as
/// if it were written out.
pub fn address(pieces: &[Piece]) -> Result<Url, String> {
    let mut building = Building::default();
    for (at, piece) in pieces.iter().enumerate() {
        match piece {
            Piece::Written(text) => building.write(text)?,
            Piece::Given { text, called } => match called.as_deref() {
                Some("url.raw") => building.write(text)?,
                called => building.give(text, called == Some("url.encode"), &pieces[at + 1..])?,
            },
        }
    }
    building.end_segment()?;
    super::parse(&building.text)
}

#[derive(Clone, Copy, Default, PartialEq)]
enum Place {
    #[default]
    Scheme,
    /// Before the host: a URL parser takes any number of slashes, of either kind.
    Slashes,
    Authority,
    Path,
    /// Or the fragment.
    Query,
}

/// The URL as far as it is built.
#[derive(Default)]
struct Building {
    text: String,
    place: Place,
    /// Where the authority, or the present segment of the path, begins in the text.
    from: usize,
    /// Whether a value that was not declared trusted is in the present segment.
    is_given: bool,
}

impl Building {
    /// Takes what the author wrote, as a URL parser reads it.
    fn write(&mut self, text: &str) -> Result<(), String> {
        for c in text.chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')) {
            let is_slash = matches!(c, '/' | '\\');
            match self.place {
                Place::Scheme if c == ':' => self.place = Place::Slashes,
                Place::Slashes if !is_slash => self.begin(Place::Authority),
                _ => {}
            }
            match (self.place, c) {
                (Place::Authority, '/' | '\\') => {
                    self.text.push(c);
                    self.begin(Place::Path);
                    continue;
                }
                (Place::Path, '/' | '\\') => {
                    self.end_segment()?;
                    self.text.push(c);
                    self.begin(Place::Path);
                    continue;
                }
                (Place::Authority | Place::Path, '?' | '#') => {
                    self.end_segment()?;
                    self.place = Place::Query;
                }
                _ => {}
            }
            self.text.push(c);
        }
        Ok(())
    }

    /// Takes what an expression gave; `rest` follows it.
    fn give(&mut self, value: &str, is_encoded: bool, rest: &[Piece]) -> Result<(), String> {
        if self.place == Place::Slashes {
            self.begin(Place::Authority);
        }
        match self.place {
            Place::Scheme if self.text.is_empty() && !begins_with(rest, &[':']) => {
                origin(value)?;
                let (scheme, host) = value.split_once("://").unwrap_or_default();
                self.text = format!("{scheme}://");
                self.begin(Place::Authority);
                self.text.push_str(host);
            }
            Place::Scheme | Place::Slashes => {
                if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric()) {
                    return Err(unfit(value, "a scheme: give http or https"));
                }
                self.text.push_str(value);
            }
            Place::Authority => {
                let authority = &self.text[self.from..];
                let host = authority.rsplit('@').next().unwrap_or_default();
                if is_user(rest) {
                    self.text.push_str(&encoded(value));
                    return Ok(());
                }
                let has_port = host.rsplit(']').next().is_some_and(|rest| rest.contains(':'));
                if has_port {
                    port(value)?;
                } else if host.is_empty() && (rest.is_empty() || begins_with(rest, &['/', '\\', '?', '#'])) {
                    host_and_port(value)?;
                } else if host.is_empty() && begins_with(rest, &[':']) {
                    host_name(value)?;
                } else if value.is_empty() || !value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-') {
                    return Err(unfit(value, "a part of a host's name: it may have letters, digits and -"));
                }
                self.text.push_str(value);
            }
            Place::Path | Place::Query => {
                self.is_given = true;
                if is_encoded {
                    self.text.push_str(value);
                } else {
                    self.text.push_str(&encoded(value));
                }
            }
        }
        Ok(())
    }

    fn begin(&mut self, place: Place) {
        self.place = place;
        self.from = self.text.len();
        self.is_given = false;
    }

    /// Refuses a segment of the path that a value has made into one that names another place than its own.
    fn end_segment(&mut self) -> Result<(), String> {
        if self.place != Place::Path || !self.is_given {
            return Ok(());
        }
        let segment = &self.text[self.from..];
        if matches!(segment.to_ascii_lowercase().replace("%2e", ".").as_str(), "" | "." | "..") {
            return Err(format!(
                "an expression makes {segment:?} of a whole segment of the path, which leads to another path: give it a name, or the whole path with url.raw(…)"
            ));
        }
        Ok(())
    }
}

/// Whether what follows is written out and begins with one of these.
fn begins_with(rest: &[Piece], with: &[char]) -> bool {
    matches!(rest.first(), Some(Piece::Written(text)) if text.starts_with(with))
}

/// Whether what stands before `rest` is before the `@` of the authority.
fn is_user(rest: &[Piece]) -> bool {
    for piece in rest {
        let Piece::Written(text) = piece else { continue };
        match text.find(['@', '/', '\\', '?', '#']) {
            Some(at) => return text[at..].starts_with('@'),
            None => continue,
        }
    }
    false
}

fn origin(value: &str) -> Result<(), String> {
    let host = value.strip_prefix("http://").or_else(|| value.strip_prefix("https://")).ok_or_else(|| {
        unfit(value, "the beginning of a URL: give it scheme, host and port alone, as in http://router.shop.svc:8080, or write url.raw(…) for what is trusted")
    })?;
    host_and_port(host).map_err(|_| {
        unfit(value, "scheme, host and port alone: write the path in http.url, or url.raw(…) for what is trusted")
    })
}

fn host_and_port(value: &str) -> Result<(), String> {
    match value.rsplit_once(':') {
        Some((host, number)) if !number.ends_with(']') => host_name(host).and_then(|()| port(number)),
        _ => host_name(value),
    }
}

fn host_name(value: &str) -> Result<(), String> {
    let is_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let address = value.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_right = match address {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => value.starts_with(|c: char| c.is_ascii_alphanumeric()) && value.bytes().all(is_name),
    };
    if is_right && value.len() <= LONGEST_HOST {
        Ok(())
    } else {
        Err(unfit(value, "a host: give it a name or an address"))
    }
}

fn port(value: &str) -> Result<(), String> {
    let is_right = !value.is_empty() && value.bytes().all(|b| b.is_ascii_digit()) && value.parse::<u16>().is_ok();
    if is_right { Ok(()) } else { Err(unfit(value, "a port: give a number up to 65535")) }
}

fn unfit(value: &str, what: &str) -> String {
    format!("an expression gives {:?}, which is not {what}", cut(value, 100))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    /// `{}` stands for what an expression gave, `{raw}` and `{encode}` for what those functions gave.
    fn pieces(url: &str, value: &str) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let mut rest = url;
        while let Some((written, after)) = rest.split_once('{') {
            let (called, after) = after.split_once('}').unwrap();
            if !written.is_empty() {
                pieces.push(Piece::Written(written.into()));
            }
            let called = (!called.is_empty()).then(|| format!("url.{called}"));
            let text = if called.as_deref() == Some("url.encode") { encoded(value) } else { value.into() };
            pieces.push(Piece::Given { text, called });
            rest = after;
        }
        if !rest.is_empty() {
            pieces.push(Piece::Written(rest.into()));
        }
        pieces
    }

    #[rstest]
    #[case("http://a/x/{}/y", "../../admin", "http://a/x/..%2F..%2Fadmin/y")]
    #[case("http://a/x/{}", "y?a=b", "http://a/x/y%3Fa%3Db")]
    #[case("http://a/x/{}", "y#z", "http://a/x/y%23z")]
    #[case("http://a/x/{}", "%2e%2e", "http://a/x/%252e%252e")]
    #[case("http://a/x/{}", "..\\..", "http://a/x/..%5C..")]
    #[case("http://a/x/{}", "a\r\nHost: b", "http://a/x/a%0D%0AHost%3A%20b")]
    #[case("http://a/x/{}", "@evil", "http://a/x/%40evil")]
    #[case("http://a/x/{}", "ä", "http://a/x/%C3%A4")]
    #[case("http://a/x/{}.json", ".", "http://a/x/..json")]
    #[case("http://a/x?id={}&b=c", "1&admin=true#", "http://a/x?id=1%26admin%3Dtrue%23&b=c")]
    #[case("http://a/x?id={}", "", "http://a/x?id=")]
    #[case("http://a/x#{}", "y z", "http://a/x#y%20z")]
    #[case("http://a/x/{encode}", "a/b", "http://a/x/a%2Fb")]
    #[case("http://a/x?y={encode}", "a&b", "http://a/x?y=a%26b")]
    #[case("http://a/{raw}", "x/../y?z=1", "http://a/y?z=1")]
    #[case("{raw}", "http://a/x?y=z", "http://a/x?y=z")]
    #[case("{}", "http://a:8080", "http://a:8080/")]
    #[case("{}/x", "https://[::1]:1", "https://[::1]:1/x")]
    #[case("{}://a/x", "https", "https://a/x")]
    #[case("http{}://a/x", "s", "https://a/x")]
    #[case("http://{}/x", "router.shop.svc:80", "http://router.shop.svc/x")]
    #[case("http://{}:81/x", "router.shop.svc", "http://router.shop.svc:81/x")]
    #[case("http://{}.shop.svc/x", "router", "http://router.shop.svc/x")]
    #[case("http://a:{}/x", "8080", "http://a:8080/x")]
    #[case("http://u:{}@a/x", "p@evil/", "http://u:p%40evil%2F@a/x")]
    fn t15_a_value_stays_in_its_place(#[case] url: &str, #[case] value: &str, #[case] expected: &str) {
        assert_eq!(address(&pieces(url, value)).map(String::from), Ok(expected.to_owned()));
    }

    #[rstest]
    #[case("http://a/x/{}/y", "..", "whole segment of the path")]
    #[case("http://a/x/{}", ".", "whole segment of the path")]
    #[case("http://a/x/{}", "", "whole segment of the path")]
    #[case("http://a/x/{}?y", "..", "whole segment of the path")]
    #[case("http://a/x/.{}", ".", "whole segment of the path")]
    #[case("http://a/x/%2E{}", ".", "whole segment of the path")]
    #[case("http://a\\x\\{}", "..", "whole segment of the path")]
    #[case("http://a/x/{encode}", "..", "whole segment of the path")]
    #[case("http://{}/x", "a@evil", "a host")]
    #[case("http://{}/x", "a/y", "a host")]
    #[case("http://{}/x", "", "a host")]
    #[case("http://{}/x", "a\\y", "a host")]
    #[case("http://{}/x", "a?", "a host")]
    #[case("http://{}/x", "a%2fb", "a host")]
    #[case("http://{}/x", "a:b", "a port")]
    #[case("http://{}/x", "a:99999", "a port")]
    #[case("http://{}:81/x", "a:80", "a host")]
    #[case("http://{}.shop.svc/x", "evil.example/", "a part of a host's name")]
    #[case("http://{}.shop.svc/x", "evil.example", "a part of a host's name")]
    #[case("http://router{}/x", ".evil.example", "a part of a host's name")]
    #[case("http://router{}", "@evil", "a part of a host's name")]
    #[case("http:{}/x", "//evil/", "a host")]
    #[case("ht\ntp:/\t/{}.svc/x", "evil.", "a part of a host's name")]
    #[case("http://a:{}/x", "80/y", "a port")]
    #[case("http://a:{}/x", "", "a port")]
    #[case("http://a:{}/x", "+80", "a port")]
    #[case("{}", "http://a/x", "scheme, host and port alone")]
    #[case("{}/x", "http://a@evil", "scheme, host and port alone")]
    #[case("{}/x", "//evil", "the beginning of a URL")]
    #[case("{}/x", "", "the beginning of a URL")]
    #[case("{}://a/x", "http://evil", "a scheme")]
    fn t15_a_value_that_would_lead_elsewhere_is_refused(#[case] url: &str, #[case] value: &str, #[case] why: &str) {
        let said = address(&pieces(url, value)).unwrap_err();
        assert!(said.contains(why), "{said}");
    }

    proptest! {
        #[test]
        fn t15_no_value_changes_what_is_around_its_place(value in "(?s).{1,40}") {
            for (url, segments) in [("http://a.svc/x/{}/y?b=c", 3), ("http://a.svc/x/z{}", 2), ("http://a.svc/x?b={}", 1)] {
                let Ok(built) = address(&pieces(url, &value)) else { continue };
                prop_assert_eq!(built.host_str(), Some("a.svc"));
                prop_assert_eq!(built.path_segments().map(Iterator::count), Some(segments));
                prop_assert!(built.path().starts_with("/x"));
                prop_assert_eq!(built.query_pairs().count(), usize::from(url.contains('?')));
                prop_assert_eq!(built.fragment(), None);
            }
        }

        #[test]
        fn t15_no_value_moves_the_host_out_of_its_domain(value in "(?s).{0,20}") {
            if let Ok(built) = address(&pieces("http://x-{}.shop.svc/y", &value)) {
                let host = built.host_str().unwrap_or_default();
                prop_assert!(host.ends_with(".shop.svc") && host.matches('.').count() == 2, "{}", host);
                prop_assert!(built.path() == "/y" && built.username().is_empty());
            }
        }
    }
}
