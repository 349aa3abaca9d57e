//! `script` steps: what they are given, what they leave, in which order, and how they fail.

use crate::cluster::{EDITOR, Outcome, SLUICE, Space, apply, eventually, kubectl, list, log, step, step_image};
use std::time::Duration;

/// A plugin's spec with an image, from these lines.
fn scripted(more: &str) -> String {
    format!("  runner: {{image: {}, serviceAccountName: {EDITOR}}}\n{more}", step_image())
}

/// Applies the sandbox `x` with one resource `r` of this plugin.
fn make(space: &Space, plugin: &str, more: &str) -> Outcome {
    apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]\n{more}")))
}

/// The denial of a sandbox whose plugin's pre-create is this.
fn denied(what: &str, workflow: &str) -> Outcome {
    let space = Space::new(what);
    let plugin = space.plugin("failing", &scripted(workflow));
    let denied = make(&space, &plugin, "").refused();
    assert!(space.get("sandbox", "x").is_none());
    denied
}

#[test]
fn inputs_come_as_environment_and_files_and_never_as_script_text() {
    let space = Space::new("inputs");
    let plugin = space.plugin(
        "inputs",
        &scripted(
            r##"  preCreate:
  - name: show
    inputs:
    - {name: size, valueFromSandbox: true, as: {env: SIZE, path: /in/deep/size}}
    - {name: my-region.x, valueFromSandbox: true}
    - {name: absent, valueFromSandbox: true}
    - {name: hostile, valueFromSandbox: true, as: {env: HOSTILE, path: /in/hostile}}
    - {name: text, value: "sandbox.metadata.name + '!'"}
    - {name: list, value: "sandbox.spec.resources.map(r, r.name)", as: {path: /in/list.json}}
    - {name: count, value: "size(sandbox.spec.resources)"}
    script: |
      #!/bin/sh
      echo "size $SIZE $(cat /in/deep/size)"
      echo "region $MY_REGION_X"
      echo "absent [$ABSENT] ${ABSENT+set}"
      echo "hostile $HOSTILE"
      [ "$(cat /in/hostile)" = "$HOSTILE" ] || exit 1
      echo "text $TEXT list $(cat /in/list.json) count $COUNT"
      env | grep -E '^(SLUICE|SIGNADOT)_' | sort
"##,
        ),
    );
    let hostile = "'; touch /tmp/pwned; $(touch /tmp/pwned) `touch /tmp/pwned` \\\" #";
    let sandbox = space.sandbox(
        "x",
        &format!(
            "  resources: [{{name: r, plugin: {plugin}, params: {{size: small, my-region.x: north, hostile: \"{hostile}\"}}}}]"
        ),
    );
    apply(&sandbox).ok();
    let sandbox = space.settle("x");
    let run = space.run("x", "PreCreate");
    let log = log(&run, "show");
    let key = sandbox["status"]["routingKey"].as_str().unwrap();
    for line in [
        "size small small",
        "region north",
        "absent [] set",
        &format!("hostile {}", hostile.replace("\\\"", "\"")),
        r#"text x! list ["r"] count 1"#,
        "SIGNADOT_RESOURCE_NAME=r",
        "SIGNADOT_SANDBOX_NAME=x",
        &format!("SIGNADOT_SANDBOX_ROUTING_KEY={key}"),
        &format!("SLUICE_IDEMPOTENCY_KEY={}/r/show", run["metadata"]["name"].as_str().unwrap()),
        "SLUICE_PHASE=pre-create",
        "SLUICE_RESOURCE_NAME=r",
        "SLUICE_SANDBOX_NAME=x",
        &format!("SLUICE_SANDBOX_NAMESPACE={}", space.namespace),
        &format!("SLUICE_SANDBOX_ROUTING_KEY={key}"),
    ] {
        assert!(log.lines().any(|l| l == line), "no line {line:?} in:\n{log}");
    }
}

/// Gives `secret`, which no manifest contains, and bytes that are no text; `read`, though it stands first, comes after.
const OUTPUTS: &str = r##"  preCreate:
  - name: read
    inputs: &made
    - {name: blob, valueFromStep: {name: make, output: blob}, as: {path: /in/blob}}
    - {name: secret, valueFromStep: {name: make, output: secret}, as: {env: SECRET}}
    - {name: same, value: steps.make.secret}
    script: &read |
      #!/bin/sh
      echo "the secret is $SECRET, $SAME"
      echo bytes $(od -An -tx1 /in/blob)
  - name: make
    outputs: [{name: blob, valueFromPath: /out/blob}, {name: secret, valueFromPath: /out/secret}]
    script: |
      #!/bin/sh
      printf '\000\001\377\n\n' >/out/blob
      printf 'hidden-%s' "$SLUICE_SANDBOX_NAMESPACE" | tee /out/secret
  preUpdate: [{name: read, inputs: *made, script: *read}]
  postDelete: [{name: read, inputs: *made, script: *read}]
"##;

#[test]
fn outputs_reach_later_steps_and_phases_byte_by_byte_and_are_never_shown() {
    let space = Space::new("outputs");
    let plugin = space.plugin("outputs", &scripted(OUTPUTS));
    make(&space, &plugin, "").ok();
    space.settle("x");
    let made = space.run("x", "PreCreate")["metadata"]["name"].as_str().unwrap().to_owned();
    // Each step's are in a Secret of their own.
    let secrets = || list(&["-n", SLUICE, "secrets", "-l", &format!("sluice.dev/run={made}")]);
    let kept = secrets();
    assert_eq!(kept.len(), 1, "{kept:#?}");
    let kept = &kept[0];
    assert_eq!(kept["data"]["r.make.blob"], "AAH/Cgo=");
    assert_eq!(kept["metadata"]["ownerReferences"][0]["kind"], "PhaseRun", "it goes with its run");
    make(&space, &plugin, "  description: changed").ok();
    space.settle("x");
    kubectl(&["-n", &space.namespace, "delete", "sandbox", "x"]).ok();
    space.settled_run("x", "PostDelete", "Succeeded");

    for phase in ["PreCreate", "PreUpdate", "PostDelete"] {
        let log = log(&space.run("x", phase), "read").to_owned();
        assert_eq!(log.trim(), "the secret is ***, ***\nbytes 00 01 ff 0a 0a", "{phase}");
    }
    let run = space.run("x", "PreCreate");
    assert_eq!(log(&run, "make"), "***");
    assert_eq!(step(&run, "make")["outputs"], serde_json::json!(["blob", "secret"]));
    assert!(step(&run, "make")["finishedAt"].as_str() <= step(&run, "read")["startedAt"].as_str());

    let secret = format!("hidden-{}", space.namespace);
    eventually(Duration::from_secs(30), "the outputs are gone with the sandbox", || secrets().is_empty().then_some(()));
    for (what, text) in [
        ("the runs", serde_json::to_string(&space.runs("x")).unwrap()),
        ("the record", serde_json::to_string(&list(&["sandboxrecords"])).unwrap()),
        ("the events", serde_json::to_string(&list(&["-A", "events"])).unwrap()),
        ("Sluice's log", {
            let selector = "sluice.dev/component=server";
            kubectl(&["-n", SLUICE, "logs", "-l", selector, "--tail=-1"]).ok().stdout
        }),
    ] {
        assert!(!text.is_empty() && !text.contains(&secret), "{what} contain the output");
    }
}

#[test]
fn w26_an_output_that_a_failing_step_prints_is_masked_at_the_terminal_and_in_status_and_event() {
    let space = Space::new("masked");
    let plugin = space.plugin(
        "masked",
        &scripted(
            r##"  preCreate:
  - name: make
    outputs: [{name: secret, valueFromPath: /out/secret}]
    script: |
      #!/bin/sh
      printf 'hidden-%s' "$SLUICE_SANDBOX_NAMESPACE" >/out/secret
  - name: tell
    inputs: [{name: secret, valueFromStep: {name: make, output: secret}}]
    script: |
      #!/bin/sh
      echo "cannot log in with $SECRET"
      exit 3
"##,
        ),
    );
    let said = make(&space, &plugin, "").refused().stderr;
    assert!(said.contains("step tell (number 2): exit code 3"), "{said}");
    assert!(said.contains("cannot log in with ***") && !said.contains("hidden-"), "{said}");
    let event = eventually(Duration::from_secs(30), "an event tells of it", || {
        let events = list(&["-n", &space.namespace, "events", "--field-selector", "reason=PreCreateFailed"]);
        Some(events.first()?["message"].as_str()?.to_owned())
    });
    let run = space.run("x", "PreCreate");
    for told in [event.as_str(), log(&run, "tell")] {
        assert!(told.contains("cannot log in with ***") && !told.contains("hidden-"), "{told}");
    }
}

#[test]
fn independent_steps_run_at_once_and_dependent_ones_in_order() {
    let space = Space::new("order");
    // Each of the first two ends only when the other has begun.
    let plugin = space.plugin(
        "order",
        &scripted(
            r##"  preCreate:
  - name: last
    needs: [one, two]
    script: "#!/bin/sh\ncat /tmp/one /tmp/two"
  - name: one
    timeoutSeconds: 20
    script: "#!/bin/sh\necho 1 >/tmp/one; until [ -e /tmp/two ]; do sleep 0.1; done"
  - name: two
    timeoutSeconds: 20
    script: "#!/bin/sh\necho 2 >/tmp/two; until [ -e /tmp/one ]; do sleep 0.1; done"
  - name: never
    when: params.?wanted.orValue("no") == "yes"
    script: "#!/bin/sh\nexit 1"
  - name: after-never
    needs: [never]
    when: phase == "PreCreate"
    script: "#!/bin/sh\necho ran"
"##,
        ),
    );
    make(&space, &plugin, "").ok();
    let run = space.run("x", "PreCreate");
    let (one, two, last) = (step(&run, "one"), step(&run, "two"), step(&run, "last"));
    assert!(one["startedAt"].as_str() < two["finishedAt"].as_str());
    assert!(two["startedAt"].as_str() < one["finishedAt"].as_str());
    assert!(last["startedAt"].as_str() >= one["finishedAt"].as_str().max(two["finishedAt"].as_str()));
    assert_eq!(last["log"], "1\n2\n");
    assert_eq!(step(&run, "never")["state"], "Skipped");
    assert_eq!(step(&run, "never")["message"], "when is false");
    assert_eq!(step(&run, "after-never")["log"], "ran\n", "a skipped step is no failed one");
}

#[test]
fn a_step_that_fails_is_tried_again_as_often_as_it_says() {
    let space = Space::new("retries");
    // The pod is the run's, so a file counts the attempts.
    let plugin = space.plugin(
        "retries",
        &scripted(
            r##"  preCreate:
  - name: second
    retries: 1
    script: "#!/bin/sh\nif [ -e /tmp/tried ]; then echo now; else touch /tmp/tried; exit 7; fi"
"##,
        ),
    );
    make(&space, &plugin, "").ok();
    let run = space.run("x", "PreCreate");
    let second = step(&run, "second");
    assert_eq!(
        (&second["state"], &second["attempt"], &second["log"]),
        (&"Succeeded".into(), &2.into(), &"now\n".into())
    );
}

#[test]
fn a_step_that_fails_too_often_denies_the_change_with_its_last_attempt() {
    let said = denied(
        "too-often",
        r##"  preCreate:
  - name: always
    retries: 1
    script: "#!/bin/sh\necho x >>/tmp/tried; echo attempt $(wc -l </tmp/tried); exit 7"
"##,
    )
    .stderr;
    assert!(said.contains("step always (number 1): exit code 7. It printed:\nattempt 2\n"), "{said}");
}

#[test]
fn a_step_that_takes_too_long_is_ended_and_says_so() {
    let outcome = denied(
        "too-long",
        r##"  preCreate:
  - name: slow
    timeoutSeconds: 2
    script: "#!/bin/sh\necho begun; sleep 600"
"##,
    );
    let said = &outcome.stderr;
    assert!(said.contains("step slow (number 1): the time limit of 2 s was reached. It printed:\nbegun\n"), "{said}");
}

#[test]
fn an_interpreter_that_the_image_lacks_is_named() {
    let workflow = "  preCreate: [{name: py, script: \"#!/usr/bin/python3\\nprint(1)\"}]\n";
    let said = denied("interpreter", workflow).stderr;
    assert!(said.contains("step py (number 1): the interpreter /usr/bin/python3 is not in the image"), "{said}");
}

#[test]
fn an_output_that_is_not_there_is_named() {
    let workflow = r##"  preCreate:
  - name: make
    outputs: [{name: host, valueFromPath: /out/host}]
    script: "#!/bin/sh\nexit 0"
"##;
    let said = denied("no-output", workflow).stderr;
    assert!(said.contains("step make (number 1): the output host is missing"), "{said}");
    assert!(said.contains("/out/host"), "{said}");
}

#[test]
fn a_fork_gets_an_output_through_a_secret_that_goes_with_the_sandbox() {
    let space = Space::new("forked");
    let namespace = space.namespace.as_str();
    space.workload("cart", 0);
    let plugin = space.plugin("outputs", &scripted(OUTPUTS));
    let env = "{name: DBPASSWORD, valueFrom: {resource: {name: r, outputKey: make.secret}}}, \
               {name: SHORT, valueFrom: {resource: {name: r, outputKey: secret}}}";
    let forks = format!("  forks: [{{forkOf: {{kind: Deployment, name: cart}}, customizations: {{env: [{env}]}}}}]");
    make(&space, &plugin, &forks).ok();
    let sandbox = space.settle("x");
    let secret = format!("hidden-{namespace}");
    let print = ["exec", "deployment/cart-x", "--", "sh", "-c", "echo $DBPASSWORD $SHORT"];
    let seen = kubectl(&[&["-n", namespace], &print[..]].concat()).ok();
    assert_eq!(seen.stdout, format!("{secret} {secret}\n"));

    let deployment = space.get("deployment", "cart-x").unwrap();
    let env = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().unwrap().clone();
    let reference = &env.iter().find(|e| e["name"] == "DBPASSWORD").unwrap()["valueFrom"]["secretKeyRef"];
    let beside = space.get("secret", reference["name"].as_str().unwrap()).unwrap();
    let owner = &beside["metadata"]["ownerReferences"][0];
    assert_eq!((&owner["kind"], &owner["uid"]), (&"Sandbox".into(), &sandbox["metadata"]["uid"]));
    assert!(!deployment.to_string().contains(&secret) && !sandbox.to_string().contains(&secret));

    kubectl(&["-n", namespace, "delete", "sandbox", "x"]).ok();
    space.settled_run("x", "PostDelete", "Succeeded");
    assert!(space.get("deployment", "cart-x").is_none());
    eventually(Duration::from_secs(30), "the Secret is gone", || {
        space.get("secret", reference["name"].as_str().unwrap()).is_none().then_some(())
    });
}
