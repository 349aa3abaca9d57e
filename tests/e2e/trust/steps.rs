//! What a step, its pod and its parameters must not get by what they say.

use crate::cluster::{EDITOR, Space, apply, eventually, kubectl, list, step_image};
use std::time::Duration;

/// Takes the place of the agent's binary, so that the next connection speaks with `fake`, and breaks the present one.
fn taking_over(fake: &str) -> String {
    format!(
        r#"  preCreate:
  - name: takes
    timeoutSeconds: 60
    outputs: [{{name: host, valueFromPath: /out/host}}]
    script: |
      #!/bin/sh
      cat >/.sluice/fake <<'END'
      #!/bin/sh
      echo '{{"type":"hello","version":"0.1.0"}}'
      read -r command
      {fake}
      sleep 60
      END
      chmod +x /.sluice/fake
      mv /.sluice/fake /.sluice/sluice
      for process in /proc/[0-9]*; do
        case "$(tr '\0' ' ' <$process/cmdline)" in *"agent connect"*) kill -9 "${{process#/proc/}}";; esac
      done
      sleep 60"#
    )
}

/// What is said to whoever makes a sandbox whose pod's agent says this.
fn said_of(space: &Space, fake: &str) -> String {
    let spec = format!("  runner: {{image: {}}}\n{}", step_image(), taking_over(fake));
    let plugin = space.plugin("takes", &spec);
    let said = apply(&space.sandbox("x", &format!("  resources: [{{name: r, plugin: {plugin}}}]"))).refused();
    assert!(said.took.as_secs() < 60, "{:?}", said.took);
    said.stderr
}

#[test]
fn t11_a_pod_that_replaces_its_agent_leaves_no_output_that_its_step_does_not_declare() {
    let space = Space::new("undeclared");
    let outputs = r#"{"host":"aGk=","admin":"aGk="}"#;
    let ended = format!(r#"{{"type":"ended","id":{{"step":"takes","attempt":1}},"exitCode":0,"outputs":{outputs}}}"#);
    let said = said_of(&space, &format!("echo '{ended}'"));
    assert!(said.contains("is not believed") && said.contains(r#"an output "admin""#), "{said}");
    let run = space.run("x", "PreCreate");
    let of_run = format!("sluice.dev/run={}", run["metadata"]["name"].as_str().unwrap());
    assert!(list(&["secrets", "-A", "-l", &of_run]).is_empty(), "outputs were kept");
}

#[test]
fn t11_a_pod_that_sends_4_mb_in_one_line_fails_its_step() {
    let space = Space::new("longline");
    let said = said_of(&space, r"head -c 4000000 /dev/zero | tr '\0' x");
    assert!(said.contains("a line is longer than 1048576 bytes"), "{said}");
}

#[test]
fn t12_an_escape_sequence_in_a_parameter_is_shown_at_kubectl() {
    let space = Space::new("escapes");
    let spec = format!(
        r##"  runner: {{image: {}}}
  preCreate:
  - name: fails
    script: "#!/bin/sh\nprintf '%s\\n' \"$SIZE\"; exit 3\n"
    inputs: [{{name: size, valueFromSandbox: true}}]"##,
        step_image()
    );
    let plugin = space.plugin("escapes", &spec);
    let resource = format!(r#"{{name: r, plugin: {plugin}, params: {{size: "\e]0;owned\a\e[31mred\r\u202Eder"}}}}"#);
    let said = apply(&space.sandbox("x", &format!("  resources: [{resource}]"))).refused().stderr;
    let hidden = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    assert!(!said.contains(hidden), "{said:?}");
    assert!(said.contains(r"\u{1b}]0;owned\u{7}\u{1b}[31mred\r\u{202e}der"), "{said:?}");
    let run = space.run("x", "PreCreate");
    let log = run["status"]["steps"][0]["log"].as_str().unwrap();
    assert!(log.contains(r"\u{1b}[31m") && !log.contains(hidden), "{log:?}");
    let events = kubectl(&["-n", &space.namespace, "get", "events", "-o", "jsonpath={.items[*].message}"]).ok().stdout;
    assert!(!events.contains(hidden), "{events:?}");
}

#[test]
fn t15_a_parameter_stays_in_its_place_of_a_url() {
    let space = Space::new("places");
    let host = format!("none.{}.svc.cluster.local", space.namespace);
    let denied = |url: &str, value: &str| {
        let step = format!("{{name: call, timeoutSeconds: 2, http: {{url: \"{url}\"}}}}");
        let plugin = space.plugin("places", &format!("  preCreate: [{step}]"));
        let resource = format!("{{name: r, plugin: {plugin}, params: {{x: '{value}'}}}}");
        apply(&space.sandbox("x", &format!("  resources: [{resource}]"))).refused().stderr
    };
    let said = denied(&format!("http://{host}/tenants/${{params.x}}/data"), "..");
    assert!(said.contains("http.url: ") && said.contains("whole segment of the path"), "{said}");
    let said = denied(&format!("http://{host}/tenants/${{params.x}}"), "a/../../admin?all=true#");
    assert!(said.contains("/tenants/a%2F..%2F..%2Fadmin%3Fall%3Dtrue%23 failed"), "{said}");
    let said = denied(&format!("http://x${{params.x}}.{host}/"), "@evil.example/");
    assert!(said.contains("http.url: ") && said.contains("a part of a host"), "{said}");
}

#[test]
fn t07_a_check_that_refuses_parameters_does_not_hand_them_to_the_post_delete() {
    let space = Space::new("checked");
    let namespace = space.namespace.as_str();
    for name in ["of-checked", "of-unmarked"] {
        kubectl(&["-n", namespace, "create", "configmap", name]).ok();
    }
    let plugin = |name: &str, marked: &str| {
        let spec = format!(
            r##"  runner: {{image: {}, serviceAccountName: {EDITOR}}}
  preCreate:
  - {{name: check, {marked}script: "#!/bin/sh\necho not yours; exit 3\n"}}
  postDelete:
  - name: drop
    delete:
      objects:
      - {{apiVersion: v1, kind: ConfigMap, name: "${{params.target}}", namespace: {namespace}}}"##,
            step_image()
        );
        space.plugin(name, &spec)
    };
    let of = |plugin: &str, target: &str| {
        format!("  resources: [{{name: r, plugin: {plugin}, params: {{target: {target}}}}}]")
    };
    let checked = plugin("checked", "readOnly: true, ");
    let said = apply(&space.sandbox("x", &of(&checked, "of-checked"))).refused().stderr;
    assert!(said.contains("not yours") && !said.contains("undone"), "{said}");
    // One that may have made something is undone, as ever: this is what the mark is for.
    let unmarked = plugin("unmarked", "");
    let said = apply(&space.sandbox("z", &of(&unmarked, "of-unmarked"))).refused().stderr;
    assert!(said.contains("undone"), "{said}");
    let there = |name: &str| space.get("configmap", name).is_some();
    eventually(Duration::from_secs(30), "the other is undone", || (!there("of-unmarked")).then_some(()));
    assert!(there("of-checked"));
}
