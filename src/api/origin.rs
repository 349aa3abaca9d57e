//! Whether Sluice wrote an object of its own memory itself, in this cluster: a restore from a backup creates what was
//! written once, anew, and what it says is not true any more.
//!
//! The API server alone says when an object was created and which UID it has. So a writer notes the time of its write,
//! and the next write of a record notes the UID that it has by then: whatever was restored differs in one or the other.

use super::labels;
use k8s_openapi::jiff::Timestamp;
use kube::api::ObjectMeta;
use std::collections::BTreeMap;
use std::time::Duration;

/// So far apart may be the moment that a writer noted and the one at which the API server created the object: the time
/// that the request takes, and what is left of the difference between their clocks. A create that took longer is taken
/// back by its writer.
pub const CREATED_WITHIN: Duration = Duration::from_secs(60);
/// The same for a record. One that took longer is its own all the same as long as its sandbox lives.
const RECORD_CREATED_WITHIN: Duration = Duration::from_secs(10);

/// The annotations of an object that is written at `now`, by the clock of the API server.
pub fn written(now: Timestamp) -> BTreeMap<String, String> {
    [(labels::WRITTEN_AT.to_owned(), now.to_string())].into()
}

/// What keeps an object out of the backups that Velero makes
/// (<https://velero.io/docs/main/resource-filtering/#exclude-specific-items-from-backup>).
pub fn no_backup() -> BTreeMap<String, String> {
    [(labels::NO_BACKUP.to_owned(), "true".to_owned())].into()
}

/// Whether a run is of this cluster. `has_begun` tells whether its status says that a process has taken it up: a run of
/// an earlier version of Sluice notes no time, and a restore brings no status back.
pub fn is_own_run(run: &ObjectMeta, has_begun: bool) -> bool {
    // One that was not read from the API server is the caller's own.
    if run.creation_timestamp.is_none() {
        return true;
    }
    match lateness(run) {
        Some(late) => late <= CREATED_WITHIN,
        None => has_begun,
    }
}

/// Whether a record is of this cluster. `is_alive` tells whether the sandbox of its name, which is a UID, is there: no
/// two objects ever have one UID.
pub fn is_own_record(record: &ObjectMeta, is_alive: bool) -> bool {
    match annotation(record, labels::OWN_UID) {
        Some(uid) => Some(uid) == record.uid.as_deref(),
        None => is_alive || lateness(record).is_some_and(|late| late <= RECORD_CREATED_WITHIN),
    }
}

/// Whether a record notes its own UID.
pub fn is_sealed(record: &ObjectMeta) -> bool {
    annotation(record, labels::OWN_UID).is_some()
}

/// Notes the UID that an object has got.
pub fn seal(object: &mut ObjectMeta) {
    if let Some(uid) = object.uid.clone() {
        object.annotations.get_or_insert_default().insert(labels::OWN_UID.to_owned(), uid);
    }
}

/// How far apart the note of the writer and the creation are.
fn lateness(object: &ObjectMeta) -> Option<Duration> {
    let written: Timestamp = annotation(object, labels::WRITTEN_AT)?.parse().ok()?;
    let created = object.creation_timestamp.as_ref()?.0;
    Some(created.duration_since(written).unsigned_abs())
}

fn annotation<'a>(object: &'a ObjectMeta, name: &str) -> Option<&'a str> {
    object.annotations.as_ref()?.get(name).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use rstest::rstest;

    fn object(created: i64, annotations: &[(&str, &str)]) -> ObjectMeta {
        let annotations = annotations.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        ObjectMeta {
            uid: Some("new".into()),
            creation_timestamp: Some(Time(Timestamp::from_second(created).unwrap())),
            annotations: Some(annotations.collect()),
            ..ObjectMeta::default()
        }
    }

    const WRITTEN: &str = "1970-01-01T00:16:40.5Z";

    #[rstest]
    #[case::at_once(1_000, true)]
    #[case::a_slow_request(1_059, true)]
    #[case::a_clock_that_is_late(980, true)]
    #[case::restored_the_next_day(87_400, false)]
    #[case::written_by_nobody_yet(900, false)]
    fn t16_a_run_is_own_that_was_created_when_it_was_written(#[case] created: i64, #[case] own: bool) {
        for has_begun in [false, true] {
            assert_eq!(is_own_run(&object(created, &[(labels::WRITTEN_AT, WRITTEN)]), has_begun), own);
        }
    }

    #[test]
    fn t16_a_run_that_notes_no_time_is_own_only_with_a_status() {
        assert!(is_own_run(&object(1_000, &[]), true));
        assert!(!is_own_run(&object(1_000, &[]), false));
        assert!(!is_own_run(&object(1_000, &[(labels::WRITTEN_AT, "yesterday")]), false));
    }

    #[rstest]
    #[case::sealed(1_000, &[(labels::OWN_UID, "new")], false, true)]
    #[case::sealed_elsewhere(1_000, &[(labels::OWN_UID, "old"), (labels::WRITTEN_AT, WRITTEN)], false, false)]
    #[case::just_written(1_003, &[(labels::WRITTEN_AT, WRITTEN)], false, true)]
    #[case::restored_before_it_was_sealed(5_000, &[(labels::WRITTEN_AT, WRITTEN)], false, false)]
    #[case::late_but_its_sandbox_lives(5_000, &[(labels::WRITTEN_AT, WRITTEN)], true, true)]
    #[case::by_an_earlier_version(5_000, &[], true, true)]
    #[case::of_nobody(5_000, &[], false, false)]
    fn t16_a_record_is_own_by_its_uid(
        #[case] created: i64,
        #[case] annotations: &[(&str, &str)],
        #[case] is_alive: bool,
        #[case] own: bool,
    ) {
        assert_eq!(is_own_record(&object(created, annotations), is_alive), own);
    }

    #[test]
    fn what_is_sealed_is_own_from_then_on() {
        let mut record = object(5_000, &[]);
        seal(&mut record);
        assert!(is_own_record(&record, false));
    }
}
