//! What steps do without a pod: `delete`, `wait` and `http`; Secrets and ConfigMaps as inputs; failures that are tolerated.

use crate::cluster::{Outcome, RUNNERS, Space, apply, eventually, keeps, kubectl, kubectl_file, step, step_image};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// The account of these tests' plugins, beside the one that may not read Secrets.
const ACTOR: &str = "e2e-actor";

/// A plugin's spec with that account and an image, from these lines.
fn acting(more: &str) -> String {
    format!("  runner: {{serviceAccountName: {ACTOR}, image: {}}}\n{more}", step_image())
}

fn set_up() {
    let manifest = format!(
        "
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {ACTOR}, namespace: {RUNNERS}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {ACTOR}}}
rules:
- {{apiGroups: [''], resources: [configmaps], verbs: [get, list, watch, create, patch, delete]}}
- {{apiGroups: [''], resources: [secrets], resourceNames: [{ACTOR}], verbs: [get]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {ACTOR}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {ACTOR}}}
subjects:
- {{kind: ServiceAccount, name: {ACTOR}, namespace: {RUNNERS}}}
---
apiVersion: v1
kind: Secret
metadata: {{name: {ACTOR}, namespace: {RUNNERS}}}
stringData: {{token: sesame-open}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: {ACTOR}, namespace: {RUNNERS}}}
data: {{region: north}}
"
    );
    // Of two that apply what is not there yet one would fail.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    apply(&manifest).ok();
}

fn make(space: &Space, plugin: &str) -> Outcome {
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]")))
}

fn config_map(space: &Space, name: &str, data: &str) {
    let manifest = format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n");
    kubectl_file(&["-n", &space.namespace, "apply"], &manifest).ok();
}

#[test]
fn a_step_waits_for_an_object_and_another_deletes_it() {
    set_up();
    let space = Space::new("waits");
    let kept = keeps("keep", "kept", "word: \"${steps.signal.word}\"");
    let plugin = space.plugin(
        "waits",
        &acting(&format!(
            r#"  preCreate:
  - name: signal
    wait:
      object: {{apiVersion: v1, kind: ConfigMap, name: "signal-${{sandbox.metadata.name}}"}}
      until: object.data.ready == "yes"
    outputs: [{{name: word, value: object.data.word}}]
  - {kept}
  - name: tidy
    needs: [keep]
    delete: {{forEach: "['signal-x', 'not-there']", as: name, objects: [{{apiVersion: v1, kind: ConfigMap, name: "${{name}}"}}]}}"#
        )),
    );
    std::thread::scope(|threads| {
        let making = threads.spawn(|| make(&space, &plugin).ok());
        eventually(Duration::from_secs(30), "the step waits", || {
            let runs = space.runs("x");
            (runs.first()?["status"]["steps"][0]["state"] == "Running").then_some(())
        });
        // Without `data`, which the expression cannot read, and with another value: neither is what is waited for.
        config_map(&space, "signal-x", "");
        config_map(&space, "signal-x", "ready: 'no', word: early");
        assert!(space.get("sandbox", "x").is_none());
        config_map(&space, "signal-x", "ready: 'yes', word: hello");
        making.join().unwrap();
    });
    assert_eq!(space.get("configmap", "kept").unwrap()["data"]["word"], "hello");
    assert!(space.get("configmap", "signal-x").is_none());
    let run = space.run("x", "PreCreate");
    assert_eq!(step(&run, "tidy")["message"], "1 deleted, 1 not there");
    assert_eq!(step(&run, "signal")["kind"], "wait");
}

#[test]
fn a_wait_that_is_in_vain_says_what_it_saw() {
    set_up();
    let space = Space::new("vain");
    let until = |name: &str, kind: &str, until: &str| {
        let object = format!("{{apiVersion: v1, kind: {kind}, name: nothing}}");
        let wait = format!("{{name: signal, timeoutSeconds: 2, wait: {{object: {object}, until: \"{until}\"}}}}");
        let plugin = space.plugin(name, &acting(&format!("  preCreate: [{wait}]")));
        make(&space, &plugin).refused().stderr
    };
    let said = until("missing", "ConfigMap", "object != null");
    let why = format!(
        "wait.until did not hold within 2 s for ConfigMap {}/nothing: there is no such object",
        space.namespace
    );
    assert!(said.contains(&why), "{said}");
    let said = until("unread", "ConfigMap", "object.data.done == '1'");
    assert!(said.contains(&why), "{said}");
    let said = until("forbidden", "Pod", "object != null");
    assert!(said.contains("could not be watched") && said.contains("cannot list resource \"pods\""), "{said}");
}

/// A server that answers what it was asked as JSON, the first time with 503.
fn serve(space: &Space) -> String {
    let script = r#"#!/bin/sh
      body=$(cat)
      n=$(cat /tmp/n 2>/dev/null || echo 0); echo $((n + 1)) >/tmp/n
      if [ "$PATH_INFO" = /flaky ] && [ "$n" = 0 ]; then
        printf 'Status: 503 Busy\r\nRetry-After: 1\r\n\r\nnot yet\n'; exit
      fi
      if [ "$PATH_INFO" = /none ]; then
        printf 'Status: 404 Not Found\r\n\r\nno such hook, %s\n' "$HTTP_X_TOKEN"; exit
      fi
      printf 'Content-Type: application/json\r\n\r\n{"method": "%s", "key": "%s", "token": "%s", "sent": %s, "calls": %s}\n' \
        "$REQUEST_METHOD" "$HTTP_IDEMPOTENCY_KEY" "$HTTP_X_TOKEN" "${body:-null}" "$((n + 1))""#;
    let manifest = format!(
        r#"
apiVersion: v1
kind: ConfigMap
metadata: {{name: server}}
data:
  hook: |
      {script}
---
apiVersion: v1
kind: Pod
metadata: {{name: server, labels: {{app: server}}}}
spec:
  terminationGracePeriodSeconds: 0
  containers:
  - name: main
    image: {image}
    command: [busybox, httpd, -f, -p, "8080", -h, /www]
    readinessProbe: {{tcpSocket: {{port: 8080}}, periodSeconds: 1}}
    volumeMounts: [{{name: www, mountPath: /www/cgi-bin}}]
  volumes: [{{name: www, configMap: {{name: server, defaultMode: 0555}}}}]
---
apiVersion: v1
kind: Service
metadata: {{name: server}}
spec: {{selector: {{app: server}}, ports: [{{port: 80, targetPort: 8080}}]}}
"#,
        image = step_image()
    );
    kubectl_file(&["-n", &space.namespace, "apply"], &manifest).ok();
    kubectl(&["-n", &space.namespace, "wait", "--for=condition=Ready", "pod/server", "--timeout=60s"]).ok();
    format!("http://server.{}.svc.cluster.local/cgi-bin/hook", space.namespace)
}

#[test]
fn a_call_is_made_again_until_it_is_answered_and_its_answer_is_an_output() {
    set_up();
    let space = Space::new("calls");
    let url = serve(&space);
    let kept = keeps(
        "keep",
        "kept",
        "method: \"${steps.call.method}\", key: \"${steps.call.key}\", sent: \"${steps.call.sent}\", token: \"${steps.call.token}\"",
    );
    let plugin = space.plugin(
        "calls",
        &acting(&format!(
            r#"  preCreate:
  - name: call
    http:
      method: POST
      url: "{url}/flaky?for=${{sandbox.metadata.name}}"
      headers: [{{name: X-Token, valueFromSecret: {{name: {ACTOR}, key: token}}}}]
      json: {{name: "${{sandbox.metadata.name}}", forks: "${{sandbox.spec.forks}}"}}
    outputs:
    - {{name: method, value: response.json.method}}
    - {{name: key, value: response.json.key}}
    - {{name: token, value: response.json.token}}
    - {{name: sent, value: response.json.sent}}
  - {kept}
  preUpdate:
  - {{name: gone, http: {{method: DELETE, url: "{url}/none", accept: [404]}}}}
  preDelete:
  - name: fails
    retries: 1
    http: {{url: "{url}/none", headers: [{{name: X-Token, valueFromSecret: {{name: {ACTOR}, key: token}}}}]}}"#
        )),
    );
    make(&space, &plugin).ok();
    let run = space.run("x", "PreCreate");
    let data = &space.get("configmap", "kept").unwrap()["data"];
    assert_eq!(data["method"], "POST");
    assert_eq!(data["key"], format!("{}/r/call", run["metadata"]["name"].as_str().unwrap()));
    assert_eq!(data["token"], "sesame-open");
    assert_eq!(
        serde_json::from_str::<Value>(data["sent"].as_str().unwrap()).unwrap(),
        serde_json::json!({"name": "x", "forks": []})
    );
    assert!(step(&run, "call")["message"].as_str().unwrap().ends_with("/cgi-bin/hook/flaky: 200 OK"), "{run:#}");
    space.settle("x");

    apply(&space.sandbox("x", &format!("  description: more\n  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    space.settle("x");
    let said = kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).refused().stderr;
    assert!(said.contains("failed: it answered 404 Not Found: no such hook, ***"), "{said}");
    let runs = serde_json::to_string(&space.runs("x")).unwrap();
    assert!(!said.contains("sesame") && !runs.contains("sesame"), "{said}\n{runs}");
}

#[test]
fn a_plugin_calls_only_what_the_admin_allows() {
    set_up();
    let space = Space::new("calling");
    let name = space.name("written");
    let http = "{name: call, http: {url: \"http://169.254.169.254/latest/${params.what}\"}}";
    let said = apply(&crate::cluster::plugin(&name, &format!("  preCreate: [{http}]"))).refused().stderr;
    assert!(
        said.contains("spec.preCreate[0].http.url: 169.254.169.254:80 is no target that plugins may call"),
        "{said}"
    );
    assert!(said.contains("http.allowedTargets in the chart's values"), "{said}");

    let plugin = space.plugin("given", "  preCreate: [{name: call, http: {url: \"${url.raw(params.url)}\"}}]");
    let resource =
        format!("{{name: r, plugin: {plugin}, params: {{url: 'http://evil.example/?x=.svc.cluster.local'}}}}");
    let said = apply(&space.sandbox("x", &format!("  resources: [{resource}]"))).refused().stderr;
    assert!(
        said.contains("http.url: evil.example:80 is no target that plugins may call (allowed are *.svc.cluster.local)"),
        "{said}"
    );
}

#[test]
fn a_script_is_given_secrets_and_the_whole_change_and_its_log_shows_none() {
    set_up();
    let space = Space::new("given");
    let plugin = space.plugin(
        "given",
        &acting(&format!(
            r#"  preUpdate:
  - name: show
    inputs:
    - {{name: token, valueFromSecret: {{name: {ACTOR}, key: token}}}}
    - {{name: region, valueFromConfigMap: {{name: {ACTOR}, key: region}}, as: {{path: /in/region}}}}
    script: |
      #!/bin/sh
      echo "token $TOKEN, ${{#TOKEN}} long, region $(cat /in/region)"
      tr -d '\n' <"$SLUICE_CHANGE_FILE" | grep -q '"description":"more"' && echo "the change is there"
  preCreate:
  - name: other
    inputs: [{{name: token, valueFromSecret: {{name: another, key: token}}}}]
    continueOnError: true
    script: '#!/bin/sh'"#
        )),
    );
    make(&space, &plugin).ok();
    let run = space.run("x", "PreCreate");
    let message = step(&run, "other")["message"].as_str().unwrap();
    assert!(message.contains(&format!("input token: Secret {RUNNERS}/another could not be read")), "{message}");
    assert!(message.contains("secrets \"another\" is forbidden"), "{message}");
    space.settle("x");

    apply(&space.sandbox("x", &format!("  description: more\n  resources: [{{name: r, plugin: {plugin}}}]"))).ok();
    let run = space.run("x", "PreUpdate");
    let log = step(&run, "show")["log"].as_str().unwrap();
    assert!(log.contains("token ***, 11 long, region north"), "{log}");
    assert!(log.contains("the change is there"), "{log}");
}

#[test]
fn a_failure_that_is_tolerated_ends_nothing() {
    set_up();
    let space = Space::new("tolerated");
    let kept = keeps("after", "kept", "state: done").replacen("{name: after,", "{name: after, needs: [optional],", 1);
    let optional = "{name: optional, continueOnError: true, script: \"#!/bin/sh\\nexit 3\"}";
    let plugin = space.plugin("tolerant", &acting(&format!("  preCreate: [{optional}, {kept}]")));
    make(&space, &plugin).ok();
    let run = space.settled_run("x", "PreCreate", "Committed");
    assert_eq!((&step(&run, "optional")["state"], &step(&run, "optional")["exitCode"]), (&"Failed".into(), &3.into()));
    assert_eq!(step(&run, "after")["state"], "Succeeded");
    assert_eq!(run["status"]["message"], "1 step, 1 failed, which is tolerated");
    assert_eq!(space.get("configmap", "kept").unwrap()["data"]["state"], "done");
}

#[test]
fn outputs_are_bytes_and_half_a_mebibyte_a_step() {
    set_up();
    let space = Space::new("bytes");
    let writes = |name: &str| {
        format!(
            "{{name: {name}, outputs: [{{name: o, valueFromPath: /out/{name}}}], \
             script: \"#!/bin/sh\\nhead -c 524288 /dev/urandom >/out/{name}; sha256sum </out/{name}\"}}"
        )
    };
    let input =
        |name: &str| format!("{{name: {name}, valueFromStep: {{name: {name}, output: o}}, as: {{path: /in/{name}}}}}");
    let reads = format!(
        "{{name: reads, inputs: [{}, {}, {}], script: \"#!/bin/sh\\nfor f in a b c; do sha256sum </in/$f; done\"}}",
        input("a"),
        input("b"),
        input("c")
    );
    let workflow = format!("  preCreate: [{}, {}, {}]\n  postCreate: [{reads}]", writes("a"), writes("b"), writes("c"));
    let plugin = space.plugin("bytes", &acting(&workflow));
    make(&space, &plugin).ok();
    space.settle("x");
    let written = space.run("x", "PreCreate");
    let read = space.run("x", "PostCreate");
    let log = |run: &Value, name: &str| step(run, name)["log"].as_str().unwrap().to_owned();
    assert_eq!(["a", "b", "c"].map(|name| log(&written, name)).concat(), log(&read, "reads"));
}
