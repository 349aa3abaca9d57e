//! What a plugin's runner says of its pods: what is laid over their template, and who shares one.

use crate::cluster::{
    RESTRICTED, RUNNERS, SLUICE, Space, apply, eventually, get, kubectl, list, log, plugin, step_image,
};
use crate::raw::Proxy;
use crate::server::{crash, fresh};
use crate::sleepers::{THREE, begin, begun, of_run, once, sandbox_in};
use std::time::Duration;

const SOON: Duration = Duration::from_secs(60);

#[test]
fn what_a_plugin_lays_over_the_pod_template_is_what_its_scripts_find() {
    let space = Space::new("overlay");
    let (secret, account) = (space.name("greeting"), space.name("reader"));
    apply(&format!(
        "
apiVersion: v1
kind: Secret
metadata: {{name: {secret}, namespace: {RUNNERS}}}
stringData: {{word: hello}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: {secret}, namespace: {RUNNERS}}}
data: {{who: world}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {account}, namespace: {RUNNERS}}}
"
    ))
    .ok();
    let plugin = space.plugin(
        "p",
        &format!(
            "  runner:
    image: '{image}'
    podTemplateOverlay: |
      metadata:
        labels: {{team: payments, app.kubernetes.io/name: sluice, app.kubernetes.io/instance: sluice, sluice.dev/component: server}}
        annotations: {{example.com/inject: 'false'}}
      spec:
        serviceAccountName: {account}
        volumes:
        - {{name: data, configMap: {{name: {secret}}}}}
        containers:
        - name: main
          env: [{{name: WORD, valueFrom: {{secretKeyRef: {{name: {secret}, key: word}}}}}}]
          volumeMounts: [{{name: data, mountPath: /data}}]
          securityContext: {{runAsUser: 1000}}
          resources: {{limits: {{memory: 300Mi}}}}
        - {{name: side, image: '{image}', command: [sleep, '600'], {RESTRICTED}}}
  preCreate:
  - name: greet
    outputs: [{{name: o, valueFromPath: /out/o}}]
    script: |
      #!/bin/sh
      echo \"$WORD $(cat /data/who) as $(id -u)\"
      ls /var/run/secrets/kubernetes.io/serviceaccount
      echo -n kept >/out/o
      sleep 3
",
            image = step_image(),
        ),
    );
    let manifest = space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
    let pod = std::thread::scope(|scope| {
        let applying = scope.spawn(|| apply(&manifest));
        let of = format!("sluice.dev/namespace={}", space.namespace);
        let pod = eventually(SOON, "the step's pod is there", || list(&["-n", RUNNERS, "pods", "-l", &of]).pop());
        applying.join().unwrap().ok();
        pod
    });
    let run = space.run("x", "PreCreate");
    assert!(log(&run, "greet").starts_with("hello world as 1000\n"), "{run:#}");
    assert!(log(&run, "greet").contains("token"), "an account that is named is the pod's: {run:#}");
    let (metadata, spec) = (&pod["metadata"], &pod["spec"]);
    assert_eq!(metadata["labels"]["team"], "payments");
    assert_eq!(metadata["labels"]["app.kubernetes.io/name"], "sluice");
    let service = get(&["-n", SLUICE, "service", "sluice"]).unwrap();
    let selector = service["spec"]["selector"].as_object().unwrap();
    let is_endpoint = selector.iter().all(|(name, value)| &metadata["labels"][name] == value);
    assert!(!is_endpoint, "a step's pod would be sent reviews: {:#} by {selector:?}", metadata["labels"]);
    assert_eq!(metadata["annotations"]["example.com/inject"], "false");
    assert_eq!(metadata["labels"]["sluice.dev/run"], run["metadata"]["name"]);
    assert_eq!(spec["containers"].as_array().unwrap().len(), 2);
    assert_eq!(spec["containers"][0]["resources"]["limits"], serde_json::json!({"cpu": "1", "memory": "300Mi"}));
    assert_eq!(spec["containers"][0]["securityContext"]["capabilities"]["drop"][0], "ALL");
}

#[test]
fn an_overlay_that_says_what_it_must_not_is_refused_with_every_fault() {
    let space = Space::new("overlaid");
    let refused = |overlay: &str| {
        let spec = format!(
            "  runner: {{image: a, podTemplateOverlay: '{overlay}'}}\n  preCreate: [{{name: one, script: '#!/bin/sh'}}]"
        );
        apply(&plugin(&space.name("p"), &spec)).refused().stderr
    };
    let said = refused("{metadata: {name: p}, spec: {restartPolicy: Always, containers: [{name: main, image: b}]}}");
    for fault in [
        "spec.runner.podTemplateOverlay: metadata.name: \"p\" cannot be",
        "spec.runner.podTemplateOverlay: spec.restartPolicy: \"Always\" cannot be",
        "spec.runner.podTemplateOverlay: spec.containers[0].image: \"b\" contradicts spec.runner.image, which is \"a\"",
    ] {
        assert!(said.contains(fault), "no {fault:?} in {said}");
    }
    let said = refused("kind: Deployment");
    assert!(said.contains("spec.runner.podTemplateOverlay: kind: a pod template has no such field"), "{said}");
}

#[test]
fn with_isolation_each_try_of_a_script_has_a_pod_of_its_own() {
    let space = Space::new("isolated");
    let plugin = space.plugin(
        "p",
        &format!(
            r##"  runner: {{image: '{}', isolation: Pod}}
  preCreate:
  - name: make
    retries: 1
    outputs: [{{name: o, valueFromPath: /out/o}}]
    script: |
      #!/bin/sh
      echo on $(hostname)
      case $(hostname) in *-0-0-1-0) touch /tmp/mark; exit 1;; esac
      [ ! -e /tmp/mark ] || exit 2
      touch /tmp/mark
      echo -n made >/out/o
  - name: read
    inputs: [{{name: o, valueFromStep: {{name: make, output: o}}, as: {{path: /in/o}}}}]
    script: |
      #!/bin/sh
      echo on $(hostname)
      [ "$(cat /in/o)" = made ] || exit 3
      [ ! -e /tmp/mark ] || exit 4
      sleep 4
"##,
            step_image()
        ),
    );
    let manifest = space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"));
    let of = format!("sluice.dev/namespace={}", space.namespace);
    let parts = || {
        let pods = list(&["-n", RUNNERS, "pods", "-l", &of]);
        let alive = pods.iter().filter(|pod| pod["metadata"]["deletionTimestamp"].is_null());
        let mut parts: Vec<_> =
            alive.map(|pod| pod["metadata"]["labels"]["sluice.dev/part"].as_str().unwrap().to_owned()).collect();
        parts.sort();
        parts
    };
    std::thread::scope(|scope| {
        let applying = scope.spawn(|| apply(&manifest));
        // The pods of tries that are over go while the run goes on.
        eventually(SOON, "only the pod of the last step is there", || (parts() == ["0-1-1-0"]).then_some(()));
        applying.join().unwrap().ok();
    });
    let run = space.run("x", "PreCreate");
    let name = run["metadata"]["name"].as_str().unwrap();
    assert_eq!(log(&run, "make").trim(), format!("on {name}-0-0-2-0"));
    assert_eq!(log(&run, "read").trim(), format!("on {name}-0-1-1-0"));
    eventually(SOON, "no pod is left", || parts().is_empty().then_some(()));
}

#[test]
fn w16_with_isolation_too_the_pod_of_the_step_is_joined_after_a_crash() {
    let space = Space::alone("isolated-crash");
    fresh();
    let manifest = sandbox_in(&space, "p", "isolation: Pod", &[("preCreate", THREE)]);
    let interrupted = begin({
        let manifest = manifest.clone();
        move || apply(&manifest)
    });
    // Each log is of one pod, so that of the second step alone says that it has begun.
    let before = eventually(SOON, "the second step runs", || {
        let run = space.runs("x").pop()?;
        let second = format!("{},sluice.dev/part=0-1-1-0", of_run(&run));
        kubectl(&["-n", RUNNERS, "logs", "-l", &second]).stdout.contains("begin").then_some(run)
    });
    let crashed = crash();
    interrupted.join().unwrap().refused();
    crashed.wait_for_successor();
    apply(&manifest).ok();
    space.settle("x");
    let after = space.run("x", "PreCreate");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(begun(&after, 1), begun(&before, 1));
    once(&after);
}

#[test]
fn who_waits_for_a_pod_without_a_place_is_told_before_the_time_is_up() {
    let space = Space::new("nowhere");
    let overlay = "podTemplateOverlay: 'spec: {nodeSelector: {example.com/no: such-node}}'";
    let manifest = sandbox_in(&space, "p", overlay, &[("preCreate", &[("one", 1, "")])]);
    // Held for less than its time limit, and told what it waits for.
    let answer = Proxy::start().create(&space, &manifest, "?timeout=12s");
    let said = answer.message();
    assert!(answer.come_again().is_some() && said.contains("still running at step r/one (1 of 1)"), "{answer:?}");
    assert!(said.contains("its pod waits: Unschedulable: ") && said.contains("nodes are available"), "{said}");
    let run = space.run("x", "PreCreate");
    let message = run["status"]["steps"][0]["message"].as_str().unwrap();
    assert!(message.starts_with("its pod waits: Unschedulable: "), "{message}");
    kubectl(&["delete", "phaserun", run["metadata"]["name"].as_str().unwrap()]).ok();
}

#[test]
fn a_secret_that_is_not_there_is_named_at_once() {
    let space = Space::new("no-secret");
    let overlay = "podTemplateOverlay: 'spec: {containers: [{name: main, envFrom: [{secretRef: {name: not-there}}]}]}'";
    let manifest = sandbox_in(&space, "p", overlay, &[("preCreate", &[("one", 1, "")])]);
    let denied = apply(&manifest).refused();
    assert!(denied.stderr.contains("cannot run: CreateContainerConfigError: "), "{}", denied.stderr);
    assert!(denied.stderr.contains("secret \"not-there\" not found"), "{}", denied.stderr);
    assert!(denied.took < Duration::from_secs(60), "it took {:?}", denied.took);
}
