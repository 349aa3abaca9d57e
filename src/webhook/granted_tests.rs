//! Against a stand-in for the API server, which answers every question after a while and counts.

use super::*;
use axum::Router;
use axum::routing::post;
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How long the stand-in takes for an answer.
const TAKES: Duration = Duration::from_millis(60);

#[derive(Default)]
struct Counts {
    now: AtomicUsize,
    most: AtomicUsize,
    asked: AtomicUsize,
}

async fn start() -> (Rights, Arc<Counts>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let counts = Arc::<Counts>::default();
    let counted = counts.clone();
    let answer = move || {
        let counts = counted.clone();
        async move {
            counts.asked.fetch_add(1, Ordering::SeqCst);
            counts.most.fetch_max(counts.now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(TAKES).await;
            counts.now.fetch_sub(1, Ordering::SeqCst);
            axum::Json(json!({"spec": {}, "status": {"allowed": true}}))
        }
    };
    let router = Router::new().route("/apis/authorization.k8s.io/v1/subjectaccessreviews", post(answer));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (Rights::new(Client::try_from(kube::Config::new(url)).unwrap()), counts)
}

fn right(name: &str) -> Right {
    Right {
        verb: "get",
        group: "",
        resource: "secrets",
        namespace: Some("shop".to_owned()),
        name: Some(name.to_owned()),
        field: "spec.forks[0]".to_owned(),
        hint: "",
    }
}

fn user(name: &str) -> UserInfo {
    UserInfo { username: name.to_owned(), ..UserInfo::default() }
}

/// Each change asks for 12 rights that nobody asked for before.
async fn change(rights: &Rights, namespace: &str, number: usize) {
    let wanted: Vec<Right> = (0..12).map(|at| right(&format!("{namespace}-{number}-{at}"))).collect();
    assert_eq!(rights.lacks(namespace, &user("alice"), &wanted).await.unwrap(), None);
}

#[tokio::test]
async fn t10_so_many_rights_of_one_namespace_are_asked_for_at_once_however_many_changes_there_are() {
    let (rights, counts) = start().await;
    futures::future::join_all((0..6).map(|number| change(&rights, "shop", number))).await;
    assert_eq!((counts.asked.load(Ordering::SeqCst), counts.most.load(Ordering::SeqCst)), (72, IN_NAMESPACE));
}

#[tokio::test]
async fn t10_so_many_rights_are_asked_for_at_once_in_all_and_nothing_is_kept_of_the_turns() {
    let (rights, counts) = start().await;
    let namespaces: Vec<String> = (0..10).map(|number| format!("tenant-{number}")).collect();
    futures::future::join_all(namespaces.iter().map(|namespace| change(&rights, namespace, 0))).await;
    assert_eq!((counts.asked.load(Ordering::SeqCst), counts.most.load(Ordering::SeqCst)), (120, AT_ONCE));
    assert_eq!(rights.lanes.of_namespace.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn t10_a_namespace_that_asks_for_much_keeps_no_other_waiting_and_who_gives_up_leaves_no_trace() {
    let (rights, _) = start().await;
    let flood = futures::future::join_all((0..40).map(|number| change(&rights, "greedy", number)));
    let other = async {
        tokio::time::sleep(TAKES).await;
        let began = Instant::now();
        assert_eq!(rights.lacks("shop", &user("bob"), &[right("a")]).await.unwrap(), None);
        began.elapsed()
    };
    // The flood takes 3.6 s, and is given up when the other has its answer.
    let waited = tokio::select! {
        _ = flood => panic!("the flood was quicker"),
        waited = other => waited,
    };
    assert!(waited < TAKES * 10, "{waited:?}");
    assert_eq!(rights.lanes.of_namespace.lock().unwrap().len(), 0);
    assert_eq!(rights.lanes.all.available_permits(), AT_ONCE);
}

#[tokio::test]
async fn a_granted_right_is_not_asked_for_again_whichever_field_asks() {
    let (rights, counts) = start().await;
    let (first, again) = (right("a"), Right { field: "spec.forks[7]".to_owned(), ..right("a") });
    for (user, right) in [(user("alice"), &first), (user("alice"), &again), (user("bob"), &first)] {
        assert_eq!(rights.lacks("shop", &user, std::slice::from_ref(right)).await.unwrap(), None);
    }
    assert_eq!(counts.asked.load(Ordering::SeqCst), 2);
}

#[test]
fn t05_a_question_is_as_short_as_any_and_no_other_is_the_same() {
    let groups = |groups: &[&str]| UserInfo {
        groups: Some(groups.iter().map(|group| (*group).to_owned()).collect()),
        ..user("alice")
    };
    let questions = [
        Question::of(&user("alice"), &right("a")),
        Question::of(&user("bob"), &right("a")),
        Question::of(&user("alice"), &right("b")),
        Question::of(&user("alice"), &Right { verb: "use", ..right("a") }),
        Question::of(&user("alice"), &Right { namespace: None, ..right("a") }),
        Question::of(&groups(&["a", "b"]), &right("a")),
        Question::of(&groups(&["a\",\"b"]), &right("a")),
        Question::of(&groups(&["ab"]), &right("a")),
        Question::of(&UserInfo { uid: Some("1".to_owned()), ..user("alice") }, &right("a")),
        Question::of(&UserInfo { extra: Some([("a".to_owned(), vec![])].into()), ..user("alice") }, &right("a")),
    ];
    let distinct: std::collections::HashSet<_> = questions.iter().collect();
    assert_eq!(distinct.len(), questions.len());
    assert_eq!(size_of::<Question>(), 32);
}

#[test]
fn t05_what_was_granted_is_forgotten_when_it_no_longer_counts_and_when_there_is_much() {
    let question = |n: usize| Question::of(&user("alice"), &right(&n.to_string()));
    let (mut granted, began) = (Granted::default(), Instant::now());
    for n in 0..REMEMBERED + 10 {
        granted.insert(question(n), began);
    }
    assert_eq!((granted.at.len(), granted.order.len()), (REMEMBERED, REMEMBERED));
    assert!(!granted.holds(&question(9), began) && granted.holds(&question(10), began));
    let later = began + GRANTED_FOR / 2;
    granted.insert(question(10), later);
    let over = began + GRANTED_FOR;
    granted.insert(question(0), over);
    assert_eq!((granted.at.len(), granted.order.len()), (2, 2));
    assert!(granted.holds(&question(10), over) && !granted.holds(&question(11), over));
}
