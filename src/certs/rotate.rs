//! Decides the next step of the serving certificate's life, in the order in which nobody meets a leaf unprepared:
//! the new authority joins the bundle, the webhook configurations carry the bundle, the leaf changes, and only when
//! every replica serves the new leaf the old authority leaves.
//!
//! Pure. Everything needed is in the certificates themselves (when each was issued, who signed it) and in what the
//! webhook configurations were seen to carry, so a crash between two steps loses nothing.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use rustls_pki_types::CertificateDer;

use super::issue::{self, BACKDATED, IssueError, LEAF_LIFETIME, Names};
use super::state::{Authority, State};
use super::token::Token;
use super::token::rotate::HEARD_WITHIN;

const DAY: u64 = 24 * 60 * 60;

/// An authority with less time than this left gets a successor: more than a leaf lives, so leaves live in full.
pub const AUTHORITY_RENEWAL: Duration = Duration::from_secs(LEAF_LIFETIME.as_secs() + 30 * DAY);
/// A leaf with less time than this left is replaced.
pub const LEAF_RENEWAL: Duration = Duration::from_secs(30 * DAY);
/// How long API servers may take to see a webhook configuration that was written.
pub const PROPAGATION: Duration = Duration::from_secs(60);
/// How long replicas may take to serve a new leaf.
pub const RELOAD_GRACE: Duration = Duration::from_secs(10 * 60);

/// What our webhook configurations were last seen to trust, and the tokens that they name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Registration {
    /// Nobody has looked yet.
    #[default]
    Unknown,
    /// No webhook of ours is in them: nobody calls us.
    Absent,
    /// Those that exist trust these authorities, each of them all of these.
    Trusting {
        /// The authorities.
        authorities: Vec<CertificateDer<'static>>,
        /// The tokens in their paths, each once.
        named: Vec<Token>,
        /// When they were first seen to trust these.
        since: Timestamp,
        /// When they were first seen to name these. Apart from `since`: tokens change often, and no authority must wait
        /// for them.
        named_since: Timestamp,
        /// Whether no webhook of ours is missing.
        complete: bool,
    },
}

impl Registration {
    /// Whether every change that should pass us does.
    pub fn in_force(&self) -> bool {
        matches!(self, Self::Trusting { complete: true, .. })
    }

    /// The tokens in the paths that they name.
    pub fn named(&self) -> &[Token] {
        match self {
            Self::Trusting { named, .. } => named,
            Self::Unknown | Self::Absent => &[],
        }
    }

    /// Whether every API server calls by `token`, and by no other, by now.
    pub fn names(&self, token: &Token, now: Timestamp) -> bool {
        match self {
            Self::Unknown => false,
            Self::Absent => true,
            Self::Trusting { named, named_since, .. } => {
                named.iter().all(|named| named == token) && *named_since + HEARD_WITHIN <= now
            }
        }
    }

    fn trusted(&self) -> &[CertificateDer<'static>] {
        match self {
            Self::Trusting { authorities, .. } => authorities,
            Self::Unknown | Self::Absent => &[],
        }
    }

    /// Whether every API server trusts `authority` by now.
    fn carries(&self, authority: &Authority, now: Timestamp) -> bool {
        match self {
            Self::Unknown => false,
            Self::Absent => true,
            Self::Trusting { authorities, since, .. } => {
                authorities.contains(&authority.certificate) && *since + PROPAGATION <= now
            }
        }
    }
}

/// The next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing is due.
    Keep,
    /// Add a new authority to the bundle; the leaf stays.
    AppendAuthority,
    /// Issue a leaf by the newest authority.
    IssueLeaf,
    /// Drop the authorities that nothing stands on any more.
    RetireAuthorities,
    /// There is no leaf that could be served, nor an authority to issue one: authority and leaf at once.
    IssueAnew,
}

/// The next step for `state`.
pub fn next(state: &State, registration: &Registration, names: &Names, now: Timestamp) -> Action {
    let signer = state.signer().map(|(authority, _)| authority).filter(|authority| authority.valid_at(now));
    let (Some(leaf), Some(issuer)) = (&state.leaf, state.leaf_issuer(names, now)) else {
        // Whatever is served now is refused already, so there is no order left to keep.
        return if signer.is_some() { Action::IssueLeaf } else { Action::IssueAnew };
    };
    let Some(signer) = signer.filter(|signer| now + AUTHORITY_RENEWAL < signer.not_after) else {
        return Action::AppendAuthority;
    };
    if issuer != signer {
        return if registration.carries(signer, now) { Action::IssueLeaf } else { Action::Keep };
    }
    if leaf.not_after <= now + LEAF_RENEWAL {
        return Action::IssueLeaf;
    }
    let served_everywhere = leaf.not_before + BACKDATED + RELOAD_GRACE <= now;
    if state.authorities.len() > 1 && served_everywhere { Action::RetireAuthorities } else { Action::Keep }
}

/// `state` after `action`.
pub fn perform(
    action: Action,
    state: &State,
    registration: &Registration,
    names: &Names,
    now: Timestamp,
) -> Result<State, IssueError> {
    match action {
        Action::Keep => Ok(state.clone()),
        Action::AppendAuthority => append_authority(state, now),
        Action::IssueLeaf => issue_leaf(state, names, now),
        Action::RetireAuthorities => {
            let (signer, _) = state.signer().ok_or(IssueError::NoSigner)?;
            Ok(State { authorities: vec![signer.clone()], ..state.clone() })
        }
        Action::IssueAnew => {
            // What the webhook configurations trust stays trusted, for replicas that still serve a leaf of it.
            let mut old = state.clone();
            let more = registration.trusted().iter().filter(|certificate| !state.trusts(certificate)).cloned();
            old.authorities.extend(more.filter_map(|certificate| Authority::read(certificate).ok()));
            issue_leaf(&append_authority(&old, now)?, names, now)
        }
    }
}

/// `state`, with what it lacks or what cannot be served taken from `remembered`, the last one that could be.
///
/// So a Secret that was deleted or garbled becomes an ordinary rotation: the leaf that all replicas serve stays until
/// the webhook configurations trust its successor.
pub fn complete(state: &State, remembered: Option<&State>, names: &Names, now: Timestamp) -> State {
    let Some(remembered) = remembered else { return state.clone() };
    if state.leaf_issuer(names, now).is_some() || remembered.leaf_issuer(names, now).is_none() {
        return state.clone();
    }
    let new = state.authorities.iter().filter(|authority| !remembered.trusts(&authority.certificate));
    State {
        authorities: remembered.authorities.iter().chain(new).cloned().collect(),
        leaf: remembered.leaf.clone(),
        signing_key: state.signing_key.clone(),
    }
}

fn append_authority(state: &State, now: Timestamp) -> Result<State, IssueError> {
    let (authority, key) = issue::authority(now)?;
    let mut authorities: Vec<Authority> =
        state.authorities.iter().filter(|authority| authority.valid_at(now)).cloned().collect();
    authorities.push(authority);
    Ok(State { authorities, leaf: state.leaf.clone(), signing_key: Some(Arc::new(key)) })
}

fn issue_leaf(state: &State, names: &Names, now: Timestamp) -> Result<State, IssueError> {
    let (signer, key) = state.signer().ok_or(IssueError::NoSigner)?;
    Ok(State { leaf: Some(issue::leaf(names, signer, key, now)?), ..state.clone() })
}
