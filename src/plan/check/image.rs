//! Names of images, as a kubelet reads them.

/// What is wrong with an image's name, by the grammar of references (github.com/distribution/reference). That it is
/// there and may be pulled is another matter.
pub fn fault(image: &str) -> Option<String> {
    let (name, digest) = image.split_once('@').map_or((image, None), |(name, digest)| (name, Some(digest)));
    let last = name.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match name[last..].find(':') {
        Some(colon) => (&name[..last + colon], Some(&name[last + colon + 1..])),
        None => (name, None),
    };
    let wrong = match path.split_once('/') {
        Some((host, rest)) if is_host(host) => rest.split('/').find(|part| !is_component(part)),
        _ => path.split('/').find(|part| !is_component(part)),
    };
    if let Some(part) = wrong {
        return Some(format!(
            "{image:?} is no name of an image: {part:?} must be small letters and digits, with . _ or - between them"
        ));
    }
    if let Some(tag) = tag.filter(|tag| !is_tag(tag)) {
        return Some(format!(
            "{image:?} is no name of an image: the tag {tag:?} must be 1 to 128 letters, digits, _, . and -"
        ));
    }
    let is_digest = |digest: &str| {
        digest.split_once(':').is_some_and(|(algorithm, hash)| {
            !algorithm.is_empty() && hash.len() >= 32 && hash.bytes().all(|b| b.is_ascii_hexdigit())
        })
    };
    let digest = digest.filter(|digest| !is_digest(digest))?;
    Some(format!("{image:?} is no name of an image: the digest {digest:?} must be as in sha256:0123…"))
}

/// Whether the first part of a name is a registry.
fn is_host(part: &str) -> bool {
    let (name, port) = part.rsplit_once(':').map_or((part, None), |(name, port)| (name, Some(port)));
    let is_named = part == "localhost" || part.contains(['.', ':']) || part.chars().any(|c| c.is_ascii_uppercase());
    let letters = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'[' | b']' | b':');
    is_named
        && !name.is_empty()
        && name.bytes().all(letters)
        && port.is_none_or(|port| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
}

fn is_component(part: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = part.as_bytes();
    let inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || matches!(b, b'.' | b'_' | b'-');
    edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(inner)
}

fn is_tag(tag: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    tag.len() <= 128 && tag.bytes().next().is_some_and(word) && tag.bytes().all(|b| word(b) || matches!(b, b'.' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("busybox", true)]
    #[case("busybox:1.36", true)]
    #[case("cluster.local/busybox:1", true)]
    #[case("localhost:5000/a/b-c__d:V1.2-x", true)]
    #[case("[::1]:5000/a", true)]
    #[case("a/b@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", true)]
    #[case("a/b:1@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", true)]
    #[case("UPPER//bad::x", false)]
    #[case("Busybox", false)]
    #[case("a//b", false)]
    #[case("a:", false)]
    #[case("a b", false)]
    #[case("/a", false)]
    #[case("a@sha256:12", false)]
    #[case("https://a.example/b", false)]
    fn an_image_has_a_name_that_a_kubelet_can_read(#[case] image: &str, #[case] right: bool) {
        assert_eq!(fault(image).is_none(), right, "{:?}", fault(image));
    }
}
