use super::*;
use crate::controller::kept::KeptFork;
use rstest::rstest;

const OWNER: Owner<'static> = Owner { name: "feature-x", uid: "u", namespace: "shop", routing_key: "r", outputs: "o" };

fn baseline() -> Value {
    json!({"metadata": {"name": "cart", "labels": {"app.kubernetes.io/instance": "argo"}}, "spec": {
        "replicas": 5, "selector": {"matchLabels": {"app": "cart"}},
        "template": {"metadata": {"labels": {"app": "cart", "tier": "web", "version": "1"}},
            "spec": {"containers": [{"name": "main", "image": "cart:1", "env": [{"name": "OLD", "value": "1"}]}]}}}})
}

fn kept(service: &Value) -> KeptService {
    serde_json::from_str(&service.to_string()).unwrap()
}

fn services() -> Vec<KeptService> {
    [
        json!({"metadata": {"name": "cart"}, "spec": {"selector": {"tier": "web"}, "ports": [{"port": 80, "nodePort": 30000}]}}),
        json!({"metadata": {"name": "other"}, "spec": {"selector": {"app": "other"}}}),
        json!({"metadata": {"name": "all"}, "spec": {}}),
        json!({"metadata": {"name": "fork", "labels": {labels::SANDBOX_UID: "v"}}, "spec": {"selector": {"tier": "web"}}}),
    ]
    .map(|service| kept(&service))
    .into()
}

fn fork(yaml: &str) -> Fork {
    serde_saphyr::from_str(yaml).unwrap()
}

fn made(yaml: &str) -> Result<Vec<Value>, ForkError> {
    objects(OWNER, &fork(yaml), baseline()["spec"].take(), &services(), &|r, k| Some(format!("{r}.step.{k}")))
}

#[test]
fn no_selector_of_the_baseline_reaches_the_fork() {
    let made = made("forkOf: {kind: Deployment, name: cart}").unwrap();
    let labels = &made[0]["spec"]["template"]["metadata"]["labels"];
    assert_eq!(
        (&labels["app"], &labels["tier"], &labels["version"]),
        (&json!("cart-feature-x"), &json!("web-feature-x"), &json!("1"))
    );
    assert_eq!(made[0]["metadata"]["labels"]["app.kubernetes.io/instance"], Value::Null);
    assert_eq!(made[0]["spec"]["replicas"], 1);
}

#[test]
fn no_patch_brings_the_baselines_labels_back() {
    let patch = "patch: {type: merge, value: 'spec: {selector: {matchLabels: {app: cart}}, template: {metadata: {labels: {app: cart, more: a}}}}'}";
    let made = made(&format!("{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{{patch}}}}}")).unwrap();
    let labels = &made[0]["spec"]["template"]["metadata"]["labels"];
    assert_eq!((&labels["app"], &labels["more"]), (&json!("cart-feature-x"), &json!("a")));
    assert_eq!(
        made[0]["spec"]["selector"],
        json!({"matchLabels": selector(OWNER, &fork("forkOf: {kind: Deployment, name: cart}"))})
    );
}

#[test]
fn each_service_that_leads_to_the_baseline_is_forked() {
    let made = made("forkOf: {kind: Deployment, name: cart}").unwrap();
    assert_eq!(made.len(), 2);
    assert_eq!(made[1]["metadata"]["name"], "cart-feature-x");
    assert_eq!(made[1]["spec"]["selector"], made[0]["spec"]["selector"]["matchLabels"]);
    assert_eq!(made[1]["spec"]["ports"], json!([{"port": 80}]));
}

#[test]
fn images_variables_and_patches_are_customised() {
    let made = made(
        "{forkOf: {kind: Deployment, name: cart}, customizations: {images: [{image: 'cart:pr'}], env: [{name: OLD, operation: delete},
         {name: HOST, valueFrom: {resource: {name: db, outputKey: host}}}], patch: {type: merge, value: 'spec: {replicas: 2}'}}}",
    )
    .unwrap();
    let container = &made[0]["spec"]["template"]["spec"]["containers"][0];
    assert_eq!((&container["image"], &made[0]["spec"]["replicas"]), (&json!("cart:pr"), &json!(2)));
    let env = container["env"].as_array().unwrap();
    assert!(!env.iter().any(|e| e["name"] == "OLD"));
    assert!(
        env.contains(&json!({"name": "HOST", "valueFrom": {"secretKeyRef": {"name": "o", "key": "db.step.host"}}}))
    );
    assert!(env.contains(&json!({"name": "SIGNADOT_SANDBOX_ROUTING_KEY", "value": "r"})));
}

#[rstest]
#[case(
    "images: [{image: a, container: side}]",
    "customizations.images[0].container: the workload has no container \"side\" (it has main)"
)]
#[case(
    "env: [{name: A, value: b, container: side}]",
    "customizations.env[0].container: the workload has no container \"side\" (it has main)"
)]
#[case("patch: {type: json, value: '[{op: remove, path: /spec/none}]'}", "customizations.patch.value: ")]
#[case("patch: {type: merge, value: 'text'}", "customizations.patch.value: what it leaves is no Deployment")]
#[case(
    "patch: {type: merge, value: 'spec: {template: {metadata: {labels: text}}}'}",
    "customizations.patch.value: what it leaves is no Deployment: \".spec.template.metadata.labels\" must be an object"
)]
fn what_does_not_fit_is_named(#[case] customizations: &str, #[case] message: &str) {
    let error = made(&format!("{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{{customizations}}}}}"))
        .unwrap_err();
    assert!(error.to_string().starts_with(message), "{error}");
}

#[test]
fn a_deployment_is_ready_when_its_new_pods_are() {
    let deployment = |observed: i64, updated: i32, available: i32| -> KeptFork {
        serde_json::from_value(json!({"metadata": {"name": "d", "generation": 2}, "spec": {"replicas": 1, "selector": {}, "template": {}},
            "status": {"observedGeneration": observed, "replicas": 1, "updatedReplicas": updated, "availableReplicas": available}})).unwrap()
    };
    assert_eq!(readiness(&deployment(2, 1, 1)), Ok(()));
    assert!(readiness(&deployment(1, 1, 1)).is_err());
    assert_eq!(readiness(&deployment(2, 1, 0)), Err("Deployment d: 0 of 1 pods available".into()));
    assert!(readiness(&deployment(2, 0, 1)).is_err());
}

#[test]
fn t03_a_patch_that_doubles_is_refused_whatever_the_baseline() {
    let mut patch = "[{op: add, path: /metadata/annotations, value: {a: xxxxxxxxxx}}".to_owned();
    for copy in 0..18 {
        patch += &format!(", {{op: copy, from: /metadata/annotations, path: /metadata/annotations/c{copy}}}");
    }
    let fork = format!(
        "{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{patch: {{type: json, value: '{patch}]'}}}}}}"
    );
    let began = std::time::Instant::now();
    let error = made(&fork).unwrap_err().to_string();
    assert!(error.starts_with("customizations.patch.value: operation "), "{error}");
    assert!(error.contains("would make a workload of more than 1024 KiB"), "{error}");
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

#[test]
fn t03_variables_are_bounded_over_all_containers() {
    let container = |n: usize| json!({"name": format!("c{n}"), "image": "i"});
    let mut baseline = baseline();
    baseline["spec"]["template"]["spec"]["containers"] = (0..2_000).map(container).collect();
    let fork = |container: &str| {
        let env = format!("{{name: A, value: '{}'{container}}}", "x".repeat(30_000));
        let text = format!("{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{env: [{env}]}}}}");
        objects(OWNER, &fork(&text), baseline["spec"].clone(), &[], &|_, _| None)
    };
    let error = fork("").unwrap_err();
    assert!(matches!(error, ForkError::Variables { containers: 2_000, .. }), "{error}");
    assert!(fork(", container: c7").is_ok());
}

#[test]
fn t03_so_many_services_are_forked_and_no_more() {
    let service = |n: usize| json!({"metadata": {"name": format!("s{n}")}, "spec": {"selector": {"app": "cart"}}});
    let with = |count: usize| {
        let services: Vec<KeptService> = (0..count).map(service).map(|service| kept(&service)).collect();
        objects(
            OWNER,
            &fork("forkOf: {kind: Deployment, name: cart}"),
            baseline()["spec"].take(),
            &services,
            &|_, _| None,
        )
    };
    assert_eq!(with(MOST_SERVICES).unwrap().len(), 1 + MOST_SERVICES);
    assert_eq!(with(MOST_SERVICES + 1).unwrap_err(), ForkError::Services { count: MOST_SERVICES + 1 });
}

#[test]
fn t09_a_patch_cannot_put_the_name_of_a_secret_together_by_copying() {
    let of = |patch: &str| {
        made(&format!(
            "{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{patch: {{type: json, value: '{patch}'}}}}}}"
        ))
    };
    let stolen = "{op: add, path: /spec/template/metadata/annotations, value: {a: keys}},
        {op: add, path: /spec/template/spec/volumes, value: [{name: v, secret: {}}]}";
    let copied = "{op: copy, from: /spec/template/metadata/annotations/a, path: /spec/template/spec/volumes/0/secret/secretName}";
    let error = of(&format!("[{stolen}, {copied}]")).unwrap_err();
    assert_eq!(error, ForkError::Unnamed { kind: "Secret", name: "keys".into() });
    let named = "{op: add, path: /spec/template/spec/volumes/0/secret/secretName, value: keys}";
    assert!(of(&format!("[{stolen}, {named}]")).is_ok());
}

#[rstest]
#[case::another_key("{op: replace, path: /env/KEY/valueFrom/secretKeyRef/key, value: other.step.word}", false)]
#[case::all_of_them(
    "{op: add, path: /envFrom, value: [{secretRef: {}}]}, {op: copy, from: /env/KEY/valueFrom/secretKeyRef/name, path: /envFrom/0/secretRef/name}",
    false
)]
#[case::its_own_once_more("{op: copy, from: /env/KEY, path: /env/-}", true)]
fn t09_a_patch_cannot_have_a_fork_show_outputs_that_its_variables_do_not_name(#[case] patch: &str, #[case] may: bool) {
    // The first five variables are the baseline's and those that tell the sandbox.
    let patch = patch.replace("/env", "/spec/template/spec/containers/0/env").replace("KEY", "5");
    let env = "env: [{name: HOST, valueFrom: {resource: {name: db, outputKey: host}}}]";
    let patch = format!("patch: {{type: json, value: '[{patch}]'}}");
    let made = made(&format!("{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{{env}, {patch}}}}}"));
    assert_eq!(made.err(), (!may).then_some(ForkError::Outputs));
}

#[test]
fn t03_the_ports_of_a_forks_services_are_measured_before_they_are_values() {
    let ports = |count: usize| (1..=count).map(|n| json!({"name": format!("p{n}"), "port": n})).collect::<Vec<_>>();
    let of = |count: usize| {
        let service = json!({"metadata": {"name": "s"}, "spec": {"selector": {"app": "cart"}, "ports": ports(count)}});
        let fork = fork("forkOf: {kind: Deployment, name: cart}");
        objects(OWNER, &fork, baseline()["spec"].take(), &[kept(&service)], &|_, _| None)
    };
    assert_eq!(of(3_000).unwrap()[1]["spec"]["ports"].as_array().unwrap().len(), 3_000);
    let error = of(30_000).unwrap_err();
    assert!(matches!(error, ForkError::Ports { .. }), "{error}");
    assert!(error.to_string().contains("and a fork has at most 4 MiB of them: give these Services fewer"), "{error}");
}
