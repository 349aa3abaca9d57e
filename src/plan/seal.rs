//! The seal of a sandbox's forks: what shows that an admission has seen them.
//!
//! Whoever may write sandboxes can write any annotation while no webhook is asked. So the mark that the webhook leaves is
//! a keyed hash over which sandbox it is and what its forks are, and only Sluice has the key.

use super::references::{forks, seal};
use hmac::{Hmac, Mac};
use serde_json::Value;
use sha2::Sha256;
use std::sync::{PoisonError, RwLock};

/// Bytes of the key.
pub const KEY_BYTES: usize = 32;
/// Characters that the API server adds to `generateName`, and how many of that it keeps.
const GENERATED: usize = 5;
const KEPT: usize = 58;
/// What the hashes are made for, so that none made for anything else ever fits.
const PURPOSE: &[u8] = b"sluice.dev/admitted/1";

type Key = [u8; KEY_BYTES];

/// Makes and checks seals.
pub struct Sealer {
    keys: RwLock<Keys>,
}

#[derive(Clone, Copy)]
struct Keys {
    /// That of new seals.
    current: Key,
    /// One that was in use before, by this process: what it sealed still holds.
    former: Option<Key>,
}

impl Sealer {
    pub const fn new(key: Key) -> Self {
        Self { keys: RwLock::new(Keys { current: key, former: None }) }
    }

    /// The key of new seals, to be kept where nobody else reads it.
    pub fn key(&self) -> Key {
        self.keys().current
    }

    fn keys(&self) -> Keys {
        *self.keys.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seals with another key from now on.
    pub fn renew(&self, key: Key) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        if keys.current != key {
            *keys = Keys { current: key, former: Some(keys.current) };
        }
    }

    /// The seal of a sandbox of this namespace; none where it has no forks.
    pub fn seal(&self, namespace: &str, sandbox: &Value) -> Option<String> {
        if forks(sandbox).is_empty() {
            return None;
        }
        let mac = mac(&self.key(), namespace, identity(sandbox), sandbox)?;
        Some(mac.finalize().into_bytes().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Whether an admission has seen the forks of a sandbox of this namespace as they are: also where it has none.
    pub fn holds(&self, namespace: &str, sandbox: &Value) -> bool {
        if forks(sandbox).is_empty() {
            return true;
        }
        seal(sandbox).is_some_and(|given| self.fits(namespace, sandbox, given))
    }

    /// Whether this is a seal of a sandbox of this namespace.
    pub fn fits(&self, namespace: &str, sandbox: &Value, given: &str) -> bool {
        let Some(given) = bytes(given) else { return false };
        let keys = self.keys();
        let keys = [Some(keys.current), keys.former];
        let mut identities = vec![("name", text(sandbox, "name"))];
        identities.extend(generated(sandbox));
        keys.iter().flatten().any(|key| {
            identities.iter().any(|identity| {
                mac(key, namespace, *identity, sandbox).is_some_and(|mac| mac.verify_slice(&given).is_ok())
            })
        })
    }
}

/// What a sandbox is called when it is sealed: one whose name the API server is still to make has only its beginning.
fn identity(sandbox: &Value) -> (&'static str, &str) {
    match text(sandbox, "name") {
        "" => ("generateName", text(sandbox, "generateName")),
        name => ("name", name),
    }
}

/// The beginning of a name that the API server has made.
fn generated(sandbox: &Value) -> Option<(&'static str, &str)> {
    let prefix = text(sandbox, "generateName");
    let kept = prefix.get(..KEPT).unwrap_or(prefix);
    let rest = text(sandbox, "name").strip_prefix(kept)?;
    (!prefix.is_empty() && rest.len() == GENERATED).then_some(("generateName", prefix))
}

fn text<'a>(sandbox: &'a Value, field: &str) -> &'a str {
    sandbox["metadata"][field].as_str().unwrap_or_default()
}

fn mac(key: &Key, namespace: &str, identity: (&str, &str), sandbox: &Value) -> Option<Hmac<Sha256>> {
    // A key of any length will do.
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    for part in [PURPOSE, namespace.as_bytes(), identity.0.as_bytes(), identity.1.as_bytes()] {
        feed_bytes(&mut mac, part);
    }
    feed(&mut mac, &sandbox["spec"]["forks"]);
    Some(mac)
}

/// Each value in one way alone, whatever the order of its fields is.
fn feed(mac: &mut Hmac<Sha256>, value: &Value) {
    match value {
        Value::Object(fields) => {
            let mut sorted: Vec<_> = fields.iter().collect();
            sorted.sort_by_key(|(name, _)| *name);
            mac.update(b"{");
            mac.update(&sorted.len().to_le_bytes());
            for (name, field) in sorted {
                feed_bytes(mac, name.as_bytes());
                feed(mac, field);
            }
        }
        Value::Array(items) => {
            mac.update(b"[");
            mac.update(&items.len().to_le_bytes());
            items.iter().for_each(|item| feed(mac, item));
        }
        Value::String(text) => {
            mac.update(b"s");
            feed_bytes(mac, text.as_bytes());
        }
        Value::Number(number) => {
            mac.update(b"n");
            feed_bytes(mac, number.to_string().as_bytes());
        }
        Value::Bool(bool) => mac.update(if *bool { b"t" } else { b"f" }),
        Value::Null => mac.update(b"0"),
    }
}

fn feed_bytes(mac: &mut Hmac<Sha256>, bytes: &[u8]) {
    mac.update(&bytes.len().to_le_bytes());
    mac.update(bytes);
}

/// What hexadecimal digits stand for.
fn bytes(digits: &str) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = digits.as_bytes().chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    pairs.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::labels::ADMITTED;
    use rstest::rstest;
    use serde_json::json;

    const KEY: Key = [7; KEY_BYTES];

    fn sandbox(name: &str, forks: &Value) -> Value {
        json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"forks": forks}})
    }

    fn sealed(mut sandbox: Value) -> Value {
        let seal = Sealer::new(KEY).seal("shop", &sandbox);
        sandbox["metadata"]["annotations"] = json!({ADMITTED: seal});
        sandbox
    }

    fn forks() -> Value {
        json!([{"forkOf": {"kind": "Deployment", "name": "web"}, "customizations": {"images": [{"image": "a"}]}}])
    }

    #[test]
    fn t08_a_seal_holds_for_this_sandbox_and_these_forks_alone() {
        let sealer = Sealer::new(KEY);
        let good = sealed(sandbox("x", &forks()));
        assert!(sealer.holds("shop", &good));
        assert!(!sealer.holds("other", &good), "another namespace");
        let with = |field: &str, value: Value| {
            let mut other = good.clone();
            *other.pointer_mut(field).unwrap() = value;
            sealer.holds("shop", &other)
        };
        assert!(!with("/metadata/name", json!("y")));
        assert!(!with("/spec/forks/0/forkOf/name", json!("api")));
        assert!(!with("/spec/forks/0/customizations/images/0/image", json!("b")));
        assert!(with("/metadata/namespace", json!("unused")), "the namespace is what the request or the watch says");
        assert!(!Sealer::new([8; KEY_BYTES]).holds("shop", &good), "another key");
    }

    #[rstest]
    #[case::none(None)]
    #[case::empty(Some(""))]
    #[case::no_digits(Some("zz"))]
    #[case::odd(Some("abc"))]
    #[case::short(Some("ab"))]
    #[case::no_ascii(Some("äöü"))]
    fn t08_nothing_else_is_a_seal(#[case] seal: Option<&str>) {
        let mut forged = sandbox("x", &forks());
        forged["metadata"]["annotations"] = json!({ADMITTED: seal});
        assert!(!Sealer::new(KEY).holds("shop", &forged));
    }

    #[test]
    fn t08_part_of_a_seal_is_none() {
        let mut cut = sealed(sandbox("x", &forks()));
        let whole = cut["metadata"]["annotations"][ADMITTED].as_str().unwrap().to_owned();
        assert_eq!(whole.len(), 64);
        cut["metadata"]["annotations"][ADMITTED] = json!(whole[..32]);
        assert!(!Sealer::new(KEY).holds("shop", &cut));
    }

    #[test]
    fn the_order_of_fields_does_not_count_and_that_of_forks_does() {
        let good = sealed(sandbox("x", &json!([{"a": 1, "b": 2}, {"c": "3"}])));
        let with = |forks: Value| {
            let mut other = good.clone();
            other["spec"]["forks"] = forks;
            Sealer::new(KEY).holds("shop", &other)
        };
        assert!(with(json!([{"b": 2, "a": 1}, {"c": "3"}])));
        assert!(!with(json!([{"c": "3"}, {"a": 1, "b": 2}])));
        assert!(!with(json!([{"a": 1, "b": 2, "c": "3"}])));
        assert!(!with(json!([{"a": 1, "b": 2}, {"c": 3}])));
    }

    #[test]
    fn t08_a_sandbox_without_a_name_yet_is_sealed_by_the_beginning_of_it() {
        let sealer = Sealer::new(KEY);
        let mut created = sealed(json!({"metadata": {"generateName": "pr-"}, "spec": {"forks": forks()}}));
        created["metadata"]["name"] = json!("pr-x7k2p");
        assert!(sealer.holds("shop", &created));
        let with = |name: &str, prefix: &str| {
            let mut other = created.clone();
            other["metadata"]["name"] = json!(name);
            other["metadata"]["generateName"] = json!(prefix);
            sealer.holds("shop", &other)
        };
        assert!(!with("pr-production", "pr-"), "no name that the API server makes");
        assert!(!with("web-x7k2p", "pr-"));
        assert!(!with("pr-x7k2p", "pr-x"));
        assert!(!with("pr-x7k2p", ""));
    }

    #[test]
    fn a_sandbox_without_forks_needs_none() {
        let sealer = Sealer::new(KEY);
        for forks in [Value::Null, json!([])] {
            assert!(sealer.holds("shop", &sandbox("x", &forks)));
            assert_eq!(sealer.seal("shop", &sandbox("x", &forks)), None);
        }
    }

    #[test]
    fn what_was_sealed_with_the_former_key_still_holds() {
        let sealer = Sealer::new(KEY);
        let good = sealed(sandbox("x", &forks()));
        sealer.renew([9; KEY_BYTES]);
        assert!(sealer.holds("shop", &good));
        assert_ne!(sealer.seal("shop", &good).as_deref(), seal(&good));
    }
}
