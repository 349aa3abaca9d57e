use super::*;
use rstest::rstest;
use std::fmt::Write;
use std::time::Instant;

fn workload() -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": {"replicas": 1, "template": {
        "metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "main", "image": "i"}]}}}})
}

fn patched(type_: PatchType, text: &str) -> Result<Value, PatchError> {
    let mut workload = workload();
    let read = read(&Patch { type_, value: text.to_owned() })?;
    apply(&mut workload, &read, &mut Work::default())?;
    Ok(workload)
}

fn left_by(text: &str) -> Result<Value, PatchError> {
    patched(PatchType::Json, text)
}

#[test]
fn each_operation_does_what_it_says() {
    let left = left_by(
        "[{op: test, path: /spec/replicas, value: 1}, {op: replace, path: /spec/replicas, value: 2},
          {op: add, path: /spec/template/spec/containers/-, value: {name: side, image: s}},
          {op: copy, from: /spec/template/spec/containers/1, path: /spec/template/spec/containers/0},
          {op: move, from: /spec/template/metadata/labels, path: /metadata/labels},
          {op: remove, path: /spec/template/spec/containers/2}]",
    )
    .unwrap();
    assert_eq!(left["spec"]["replicas"], 2);
    assert_eq!(left["metadata"]["labels"], json!({"app": "web"}));
    let names: Vec<_> = left["spec"]["template"]["spec"]["containers"].as_array().unwrap().iter().collect();
    assert_eq!((names.len(), &names[0]["name"], &names[1]["name"]), (2, &json!("side"), &json!("main")));
}

/// `copies` operations that each put the whole list once more into itself, beside a text of some bytes.
fn doubles(copies: usize, bytes: usize) -> String {
    let mut text = format!("[{{op: add, path: /spec/x, value: {{a: '{}'}}}}", "x".repeat(bytes));
    for copy in 0..copies {
        let _ = write!(text, ", {{op: copy, from: /spec/x, path: /spec/x/c{copy}}}");
    }
    text + "]"
}

/// Copies the root into itself: it doubles, and so does its depth.
fn deepens(copies: usize) -> String {
    let copy = |at: usize| format!("{{op: copy, from: '', path: /{}}}", "a".repeat(1 + at % 2));
    format!("[{}]", (0..copies).map(copy).collect::<Vec<_>>().join(","))
}

#[rstest]
#[case::copies(doubles(18, 10))]
#[case::copies_of_a_long_text(doubles(30, 20_000))]
#[case::the_root_in_itself(deepens(40))]
#[case::a_long_list_that_is_copied(format!("[{{op: add, path: /spec/l, value: [{}]}}, {}]", "1,".repeat(2_000),
    vec!["{op: copy, from: /spec/l, path: /spec/l/0}"; 400].join(",")))]
fn t03_a_patch_that_doubles_is_refused_before_it_does(#[case] text: String) {
    assert!(text.len() <= 65_536, "{}", text.len());
    let began = Instant::now();
    let refused = left_by(&text).unwrap_err();
    assert!(matches!(refused, PatchError::Grows { .. }), "{refused}");
    assert!(!refused.depends_on_the_workload(), "no workload makes it right");
    assert!(refused.to_string().contains("more than 1024 KiB"), "{refused}");
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

#[test]
fn t03_a_patch_that_grows_nothing_and_never_ends_is_refused() {
    let mut text = format!("[{{op: add, path: /spec/x, value: {{a: '{}'}}}}", "x".repeat(25_000));
    for copy in 0..5 {
        let _ = write!(text, ", {{op: copy, from: /spec/x, path: /spec/x/c{copy}}}");
    }
    text += &", {op: copy, from: /spec/x, path: /y}".repeat(900);
    assert!(matches!(left_by(&(text + "]")).unwrap_err(), PatchError::Grows { .. } | PatchError::Work { .. }));

    let long = format!("[{{op: add, path: /l, value: [{}]}}, ", "1,".repeat(10_000));
    let shifts = vec!["{op: add, path: /l/0, value: 1}"; 990].join(",");
    assert!(matches!(left_by(&format!("{long}{shifts}]")), Err(PatchError::Work { .. })));
}

#[test]
fn t03_a_patch_has_so_many_operations_and_no_more() {
    let of = |count: usize| format!("[{}]", vec!["{op: test, path: /a, value: 1}"; count].join(","));
    assert_eq!(left_by(&of(1_001)).unwrap_err(), PatchError::TooMany { count: 1_001 });
    assert!(matches!(left_by(&of(1_000)).unwrap_err(), PatchError::Fits { index: 0, .. }));
}

#[rstest]
// What a later operation took away, an earlier one cannot be taken back in: the library ends the process over it.
#[case(
    "[{op: add, path: /spec/l, value: [1]}, {op: add, path: /spec/l/0, value: 2}, {op: move, from: /spec/l, path: /no/where}]"
)]
#[case(
    "[{op: add, path: /spec/x, value: {}}, {op: add, path: /spec/x/y, value: 1}, {op: move, from: /spec/x, path: /spec/replicas/z}]"
)]
#[case("[{op: remove, path: ''}]")]
#[case("[{op: move, from: '', path: /a}]")]
#[case("[{op: move, from: /spec, path: /spec/template}]")]
#[case("[{op: remove, path: /spec/template/spec/containers/-}]")]
#[case("[{op: add, path: /spec/template/spec/containers/18446744073709551616, value: 1}]")]
fn t03_a_patch_that_does_not_fit_is_an_error_and_no_panic(#[case] text: &str) {
    let refused = left_by(text).unwrap_err();
    assert!(refused.depends_on_the_workload(), "{refused}");
}

#[test]
fn a_merge_patch_leaves_no_more_than_may_be() {
    let left = patched(PatchType::Merge, "spec: {replicas: 2, template: null}").unwrap();
    assert_eq!(left["spec"], json!({"replicas": 2}));
    let aliases = format!("a: &a {}\nb: [{}]\n", "x".repeat(20_000), "*a,".repeat(60));
    assert!(matches!(patched(PatchType::Merge, &aliases).unwrap_err(), PatchError::Text(_) | PatchError::TooLarge));
}

#[test]
fn a_patch_may_make_a_workload_smaller_that_is_too_large() {
    let mut large = workload();
    large["spec"]["x"] = json!("x".repeat(1_200_000));
    let read = read(&Patch { type_: PatchType::Json, value: "[{op: remove, path: /spec/x}]".into() }).unwrap();
    apply(&mut large, &read, &mut Work::default()).unwrap();
    assert_eq!(large, workload());
}

#[rstest]
#[case("text", "is no JSON patch: ")]
#[case("[{op: none, path: /a}]", "is no JSON patch: ")]
#[case("a: [", "is no YAML or JSON that can be read: ")]
fn what_is_no_patch_is_said(#[case] text: &str, #[case] why: &str) {
    assert!(left_by(text).unwrap_err().to_string().starts_with(why));
}

#[test]
fn t03_a_patch_is_tried_whatever_its_baseline_will_be() {
    let examined =
        |text: &str| examine(&Patch { type_: PatchType::Json, value: text.to_owned() }, &mut Work::default());
    // What does not fit the specimen hides nothing of what follows.
    let hidden =
        doubles(18, 10).replacen('[', "[{op: test, path: /spec/replicas, value: 77}, {op: remove, path: /no}, ", 1);
    assert!(matches!(examined(&hidden), Err(PatchError::Grows { .. })), "{:?}", examined(&hidden));
    assert_eq!(examined("[{op: replace, path: /spec/template/spec/containers/7/image, value: i}]"), Ok(()));
    assert!(examined("[{op: none, path: /a}]").is_err());
}

#[test]
fn t03_all_patches_of_a_sandbox_share_one_bound_on_their_work() {
    let mut work = Work::default();
    let mut text = format!("[{{op: add, path: /x, value: '{}'}}", "x".repeat(30_000));
    text += &", {op: copy, from: /x, path: /y}".repeat(100);
    let patch = Patch { type_: PatchType::Json, value: text + "]" };
    let done = (0..64).take_while(|_| examine(&patch, &mut work).is_ok()).count();
    assert!((1..16).contains(&done), "{done}");
}
