//! A plugin's `podTemplateOverlay`: what of a pod template it may say, and what not.
//!
//! The names that it must not use are defined here, so that who makes the default pod uses the same.

use super::yaml;
use crate::agent::AGENT_DIR;
use crate::api::Runner;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// The container that runs scripts.
pub const MAIN: &str = "main";
/// What the names of Sluice's own containers and volumes in a step's pod begin with.
pub const RESERVED: &str = "sluice-";
/// Kubernetes takes numbers where it wants quantities; so do files of its users.
const QUANTITIES: [&str; 3] = ["limits", "requests", "overhead"];
const QUANTITY: [&str; 2] = ["sizeLimit", "divisor"];

/// The overlay of a runner as a value to be merged over the default pod template; what is wrong with it else, each
/// with the field inside of it.
pub fn overlay(runner: &Runner) -> Result<Option<Value>, Vec<String>> {
    let Some(text) = &runner.pod_template_overlay else { return Ok(None) };
    let no_template = |why: String| vec![format!("is no pod template: {why}")];
    let mut overlay: Value = yaml::read(text).map_err(no_template)?;
    if !overlay.is_object() {
        return Err(no_template("write a map with metadata, spec or both".to_owned()));
    }
    quote_quantities(&mut overlay);
    let typed: PodTemplateSpec =
        serde_path_to_error::deserialize(&overlay).map_err(|error| no_template(error.to_string()))?;
    let known = serde_json::to_value(typed).map_err(|error| no_template(error.to_string()))?;
    let mut faults = Vec::new();
    unknown(&overlay, &known, "", &mut faults);
    metadata(&overlay["metadata"], runner, &mut faults);
    spec(&overlay["spec"], runner, &mut faults);
    if faults.is_empty() { Ok(Some(overlay)) } else { Err(faults) }
}

/// The service account that an overlay names.
pub fn service_account(overlay: &Value) -> Option<&str> {
    ["serviceAccountName", "serviceAccount"].iter().find_map(|field| text(&overlay["spec"], field))
}

/// The Secrets of the pod's namespace that an overlay refers to.
pub fn secrets(overlay: &Value) -> BTreeSet<&str> {
    let mut found = BTreeSet::new();
    collect_secrets(overlay, &mut found);
    found
}

fn collect_secrets<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let named = match name.as_str() {
                    "secretName" => field.as_str(),
                    "secret" => text(field, "name"),
                    _ if name.to_lowercase().ends_with("secretref") || name == "secretKeyRef" => text(field, "name"),
                    _ => None,
                };
                found.extend(named);
                collect_secrets(field, found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect_secrets(item, found)),
        _ => {}
    }
}

fn text<'a>(value: &'a Value, field: &str) -> Option<&'a str> {
    value.get(field).and_then(Value::as_str).filter(|text| !text.is_empty())
}

fn quote_quantities(value: &mut Value) {
    let quote = |value: &mut Value| {
        if value.is_number() {
            *value = Value::String(value.to_string());
        }
    };
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::Object(map) if QUANTITIES.contains(&name.as_str()) => map.values_mut().for_each(quote),
                    _ if QUANTITY.contains(&name.as_str()) => quote(field),
                    _ => quote_quantities(field),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(quote_quantities),
        _ => {}
    }
}

/// Names what of `given` a pod template does not have: `known` is what is left of it as one.
fn unknown(given: &Value, known: &Value, path: &str, faults: &mut Vec<String>) {
    match given {
        Value::Object(fields) => {
            for (name, value) in fields.iter().filter(|(name, value)| *name != "$patch" && !value.is_null()) {
                let at = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                match known.get(name) {
                    Some(known) => unknown(value, known, &at, faults),
                    None => faults.push(format!("{at}: a pod template has no such field")),
                }
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                unknown(item, &known[index], &format!("{path}[{index}]"), faults);
            }
        }
        _ => {}
    }
}

fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flat_map(Map::iter).filter(|(_, value)| !value.is_null())
}

fn metadata(metadata: &Value, runner: &Runner, faults: &mut Vec<String>) {
    for (field, value) in fields(metadata) {
        match (field.as_str(), value.as_str()) {
            ("labels" | "annotations", _) => {}
            ("name" | "generateName", _) => faults.push(format!(
                "metadata.{field}: {value} cannot be: each step's pod gets a name of its own, so take it away"
            )),
            ("namespace", Some(namespace)) if runner.namespace.as_deref() == Some(namespace) => {}
            ("namespace", _) => faults.push(match &runner.namespace {
                Some(own) => format!("metadata.namespace: {value} contradicts spec.runner.namespace, which is {own:?}"),
                None => format!("metadata.namespace: {value} has no effect here: set spec.runner.namespace"),
            }),
            _ => faults.push(format!("metadata.{field}: only labels and annotations can be set")),
        }
    }
}

fn spec(spec: &Value, runner: &Runner, faults: &mut Vec<String>) {
    if let Some(policy) = spec["restartPolicy"].as_str().filter(|policy| !matches!(*policy, "" | "Never")) {
        faults.push(format!("spec.restartPolicy: {policy:?} cannot be: a step's pod has Never, so take it away"));
    }
    for field in ["activeDeadlineSeconds", "ephemeralContainers"] {
        if !spec[field].is_null() {
            let instead = if field == "activeDeadlineSeconds" { ": set a phase's timeoutSeconds" } else { "" };
            faults.push(format!("spec.{field}: is set by Sluice alone{instead}"));
        }
    }
    for field in ["serviceAccountName", "serviceAccount"] {
        if let (Some(account), Some(own)) = (text(spec, field), &runner.service_account_name)
            && account != own
        {
            faults.push(format!(
                "spec.{field}: {account:?} contradicts spec.runner.serviceAccountName, which is {own:?}"
            ));
        }
    }
    let items = |field: &str| spec[field].as_array().map(Vec::as_slice).unwrap_or_default();
    for (index, volume) in items("volumes").iter().enumerate() {
        if let Some(name) = text(volume, "name").filter(|name| name.starts_with(RESERVED)) {
            faults.push(reserved(&format!("spec.volumes[{index}].name"), name));
        }
    }
    let volumes: BTreeSet<&str> = items("volumes").iter().filter_map(|volume| text(volume, "name")).collect();
    let mut names = BTreeSet::new();
    for list in ["containers", "initContainers"] {
        for (index, container) in items(list).iter().enumerate() {
            let at = format!("spec.{list}[{index}]");
            let name = text(container, "name").unwrap_or_default();
            if name.starts_with(RESERVED) || (name == MAIN && list != "containers") {
                faults.push(reserved(&format!("{at}.name"), name));
            }
            if !names.insert(name) {
                faults.push(format!("{at}.name: there are two containers {name:?}"));
            }
            self::container(container, &at, name == MAIN, runner, faults);
            mounts(container, &at, &volumes, faults);
        }
    }
}

fn reserved(field: &str, name: &str) -> String {
    format!("{field}: {name:?} is reserved: choose a name that is not {MAIN:?} and does not begin with {RESERVED:?}")
}

fn container(container: &Value, at: &str, is_main: bool, runner: &Runner, faults: &mut Vec<String>) {
    if container.get("name").is_none() && container.get("$patch").is_none() {
        faults.push(format!("{at}.name: is missing: {MAIN:?} is the container of the scripts"));
    }
    let image = text(container, "image");
    if !is_main {
        if image.is_none() && container.get("$patch").is_none() {
            faults.push(format!("{at}.image: is missing: only {MAIN:?} has the runner's image"));
        }
        return;
    }
    if let Some(image) = image.filter(|image| runner.image.as_deref() != Some(image)) {
        faults.push(match &runner.image {
            Some(own) => format!("{at}.image: {image:?} contradicts spec.runner.image, which is {own:?}"),
            None => format!("{at}.image: {image:?} has no effect here: set spec.runner.image"),
        });
    }
    for field in ["command", "args"] {
        if container.get(field).is_some_and(|value| !value.is_null()) {
            faults.push(format!("{at}.{field}: Sluice's agent runs in this container, and the scripts in it"));
        }
    }
    if container.get("$patch").is_some() {
        faults.push(format!("{at}: the container of the scripts can be neither deleted nor replaced"));
    }
}

fn mounts(container: &Value, at: &str, volumes: &BTreeSet<&str>, faults: &mut Vec<String>) {
    for (index, mount) in container["volumeMounts"].as_array().into_iter().flatten().enumerate() {
        let field = format!("{at}.volumeMounts[{index}]");
        let path = text(mount, "mountPath").unwrap_or_default();
        let folder = path.trim_end_matches('/');
        if folder.is_empty() || folder == AGENT_DIR || folder.starts_with(&format!("{AGENT_DIR}/")) {
            faults.push(format!("{field}.mountPath: {path:?} is reserved: {AGENT_DIR} is the agent's"));
        }
        if let Some(name) = text(mount, "name").filter(|name| !volumes.contains(name)) {
            faults.push(format!("{field}.name: there is no volume {name:?} in spec.volumes of the overlay"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn runner(text: &str) -> Runner {
        Runner {
            image: Some("psql:16".into()),
            namespace: Some("plugins".into()),
            service_account_name: Some("editor".into()),
            pod_template_overlay: Some(text.to_owned()),
            ..Runner::default()
        }
    }

    #[rstest]
    #[case("metadata: {name: p}", "metadata.name: \"p\" cannot be")]
    #[case("metadata: {generateName: p-}", "metadata.generateName: \"p-\" cannot be")]
    #[case(
        "metadata: {namespace: shop}",
        "metadata.namespace: \"shop\" contradicts spec.runner.namespace, which is \"plugins\""
    )]
    #[case("metadata: {finalizers: [a/b]}", "metadata.finalizers: only labels and annotations can be set")]
    #[case("spec: {restartPolicy: Always}", "spec.restartPolicy: \"Always\" cannot be")]
    #[case("spec: {activeDeadlineSeconds: 5}", "spec.activeDeadlineSeconds: is set by Sluice alone")]
    #[case(
        "spec: {serviceAccountName: admin}",
        "spec.serviceAccountName: \"admin\" contradicts spec.runner.serviceAccountName"
    )]
    #[case(
        "spec: {serviceAccount: admin}",
        "spec.serviceAccount: \"admin\" contradicts spec.runner.serviceAccountName"
    )]
    #[case(
        "spec: {containers: [{name: main, image: other}]}",
        "spec.containers[0].image: \"other\" contradicts spec.runner.image"
    )]
    #[case(
        "spec: {containers: [{name: main, command: [sh]}]}",
        "spec.containers[0].command: Sluice's agent runs in this container"
    )]
    #[case(
        "spec: {containers: [{name: main, $patch: delete}]}",
        "spec.containers[0]: the container of the scripts can be neither"
    )]
    #[case("spec: {containers: [{name: sluice-x, image: i}]}", "spec.containers[0].name: \"sluice-x\" is reserved")]
    #[case("spec: {containers: [{name: side}]}", "spec.containers[0].image: is missing")]
    #[case("spec: {containers: [{image: i}]}", "spec.containers[0].name: is missing")]
    #[case(
        "spec: {containers: [{name: a, image: i}], initContainers: [{name: a, image: i}]}",
        "spec.initContainers[0].name: there are two containers \"a\""
    )]
    #[case("spec: {initContainers: [{name: main, image: i}]}", "spec.initContainers[0].name: \"main\" is reserved")]
    #[case(
        "spec: {initContainers: [{name: sluice-agent, image: i}]}",
        "spec.initContainers[0].name: \"sluice-agent\" is reserved"
    )]
    #[case("spec: {volumes: [{name: sluice-0, emptyDir: {}}]}", "spec.volumes[0].name: \"sluice-0\" is reserved")]
    #[case(
        "spec: {volumes: [{name: a, emptyDir: {}}], containers: [{name: main, volumeMounts: [{name: a, mountPath: /.sluice/x}]}]}",
        "spec.containers[0].volumeMounts[0].mountPath: \"/.sluice/x\" is reserved"
    )]
    #[case(
        "spec: {volumes: [{name: a, emptyDir: {}}], containers: [{name: main, volumeMounts: [{name: a, mountPath: /}]}]}",
        "spec.containers[0].volumeMounts[0].mountPath: \"/\" is reserved"
    )]
    #[case(
        "spec: {containers: [{name: main, volumeMounts: [{name: a, mountPath: /data}]}]}",
        "spec.containers[0].volumeMounts[0].name: there is no volume \"a\""
    )]
    #[case("spec: {contianers: []}", "spec.contianers: a pod template has no such field")]
    #[case(
        "spec: {containers: [{name: main, env: [{name: A, vlaue: b}]}]}",
        "spec.containers[0].env[0].vlaue: a pod template has no such field"
    )]
    #[case("{apiVersion: v1, kind: Pod}", "apiVersion: a pod template has no such field")]
    #[case(
        "spec: {containers: {name: main}}",
        "is no pod template: spec.containers: invalid type: map, expected a sequence"
    )]
    #[case(
        "spec: {containers: [{name: main, env: [{name: A, value: 8080}]}]}",
        "is no pod template: spec.containers[0].env[0].value: invalid type: integer `8080`, expected a string"
    )]
    #[case("just text", "is no pod template: write a map")]
    #[case("a: [", "is no pod template: ")]
    fn a_fault_names_its_field_and_the_remedy(#[case] text: &str, #[case] fault: &str) {
        let faults = overlay(&runner(text)).unwrap_err();
        assert!(faults.iter().any(|found| found.starts_with(fault)), "{faults:#?}");
    }

    #[test]
    fn t03_an_overlay_whose_aliases_multiply_is_refused() {
        let mut text = "metadata: {annotations: {}}\na0: &a0 [x, x]\n".to_owned();
        for n in 1..9 {
            text += &format!("a{n}: &a{n} [{}]\n", format!("*a{},", n - 1).repeat(9));
        }
        let began = std::time::Instant::now();
        let faults = overlay(&runner(&text)).unwrap_err();
        assert!(faults[0].starts_with("is no pod template: "), "{faults:?}");
        assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
    }

    #[rstest]
    #[case(
        "metadata: {creationTimestamp: null, namespace: plugins, labels: {a: b}, annotations: {sidecar.istio.io/inject: 'false'}}"
    )]
    #[case(
        "spec: {restartPolicy: '', serviceAccountName: editor, imagePullSecrets: [{name: a}], tolerations: [{key: a, operator: Exists}]}"
    )]
    #[case("spec: {containers: [{name: main, image: psql:16, resources: {limits: {cpu: 2, memory: 1Gi}}}]}")]
    #[case(
        "spec: {containers: [{name: main, env: [{name: A, valueFrom: {secretKeyRef: {name: s, key: k}}}], securityContext: {runAsUser: 0, runAsNonRoot: false}}]}"
    )]
    #[case(
        "spec: {volumes: [{name: a, emptyDir: {sizeLimit: 1Gi}}], containers: [{name: main, volumeMounts: [{name: a, mountPath: /tmp}]}]}"
    )]
    #[case("spec: {containers: [{name: side, image: s}, {name: main, env: [{name: A, $patch: delete}]}]}")]
    #[case("{}")]
    fn what_says_only_what_it_may_is_taken(#[case] text: &str) {
        assert!(overlay(&runner(text)).unwrap().is_some());
    }

    #[test]
    fn a_number_is_a_quantity() {
        let overlay = overlay(&runner("spec: {containers: [{name: main, resources: {limits: {cpu: 2}}}]}")).unwrap();
        assert_eq!(overlay.unwrap()["spec"]["containers"][0]["resources"]["limits"]["cpu"], "2");
    }

    #[test]
    fn every_secret_that_is_referred_to_is_known() {
        let text = "spec: {volumes: [{name: a, secret: {secretName: one}}, {name: b, projected: {sources: [{secret: {name: two}}]}},
            {name: c, csi: {driver: d, nodePublishSecretRef: {name: three}}}],
            containers: [{name: main, envFrom: [{secretRef: {name: four}}], env: [{name: A, valueFrom: {secretKeyRef: {name: five, key: k}}}]}]}";
        let overlay = overlay(&runner(text)).unwrap().unwrap();
        assert_eq!(secrets(&overlay), ["five", "four", "one", "three", "two"].into());
    }
}
