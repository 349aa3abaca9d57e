//! The defaults of built-in kinds: those that the kinds of sandboxes and step pods meet.

use super::kinds::Kind;
use serde_json::{Map, Value, json};

/// Fills in what an object of a built-in kind leaves out.
pub fn fill(kind: &Kind, object: &mut Value) {
    if let Some(spec) = object.get_mut("spec") {
        fill_spec(kind, spec);
    }
    match kind.qualified().as_str() {
        "secrets" => secret(object),
        "mutatingwebhookconfigurations.admissionregistration.k8s.io"
        | "validatingwebhookconfigurations.admissionregistration.k8s.io" => webhooks(kind, object),
        "rolebindings.rbac.authorization.k8s.io" | "clusterrolebindings.rbac.authorization.k8s.io" => {
            if let Some(role) = object.get_mut("roleRef") {
                put(role, &[("apiGroup", json!("rbac.authorization.k8s.io"))]);
            }
        }
        _ => {}
    }
}

fn fill_spec(kind: &Kind, spec: &mut Value) {
    match kind.qualified().as_str() {
        "pods" => pod(spec),
        "deployments.apps" => deployment(spec),
        "replicasets.apps" | "statefulsets.apps" => {
            put(spec, &[("replicas", json!(1))]);
            template(spec);
        }
        "daemonsets.apps" | "jobs.batch" => template(spec),
        "services" => service(spec),
        _ => {}
    }
}

/// Sets the fields of a map that are not there; what is no map stays as it is.
fn put(value: &mut Value, defaults: &[(&str, Value)]) {
    if let Some(fields) = value.as_object_mut() {
        for (name, default) in defaults {
            fields.entry(*name).or_insert_with(|| default.clone());
        }
    }
}

fn each<'a>(value: &'a mut Value, list: &str) -> impl Iterator<Item = &'a mut Value> {
    value.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten()
}

fn pod(spec: &mut Value) {
    put(
        spec,
        &[
            ("restartPolicy", json!("Always")),
            ("dnsPolicy", json!("ClusterFirst")),
            ("schedulerName", json!("default-scheduler")),
            ("terminationGracePeriodSeconds", json!(30)),
            ("securityContext", json!({})),
            ("enableServiceLinks", json!(true)),
        ],
    );
    for list in ["containers", "initContainers"] {
        for container in each(spec, list) {
            let image = container["image"].as_str().unwrap_or_default();
            let name = image.rsplit('/').next().unwrap_or_default();
            let latest = !name.contains('@') && (!name.contains(':') || name.ends_with(":latest"));
            let pull = if latest { "Always" } else { "IfNotPresent" };
            put(
                container,
                &[
                    ("imagePullPolicy", json!(pull)),
                    ("resources", json!({})),
                    ("terminationMessagePath", json!("/dev/termination-log")),
                    ("terminationMessagePolicy", json!("File")),
                ],
            );
            each(container, "ports").for_each(|port| put(port, &[("protocol", json!("TCP"))]));
        }
    }
}

fn template(spec: &mut Value) {
    if let Some(inner) = spec.get_mut("template").and_then(|template| template.get_mut("spec")) {
        pod(inner);
    }
}

fn deployment(spec: &mut Value) {
    put(
        spec,
        &[
            ("replicas", json!(1)),
            ("revisionHistoryLimit", json!(10)),
            ("progressDeadlineSeconds", json!(600)),
            (
                "strategy",
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}}),
            ),
        ],
    );
    template(spec);
}

fn service(spec: &mut Value) {
    put(
        spec,
        &[
            ("type", json!("ClusterIP")),
            ("sessionAffinity", json!("None")),
            ("internalTrafficPolicy", json!("Cluster")),
        ],
    );
    for port in each(spec, "ports") {
        let own = port["port"].clone();
        put(port, &[("protocol", json!("TCP")), ("targetPort", own)]);
    }
}

/// `stringData` is only for writing.
fn secret(secret: &mut Value) {
    use base64::Engine;
    put(secret, &[("type", json!("Opaque"))]);
    let Some(fields) = secret.as_object_mut() else { return };
    let Some(Value::Object(plain)) = fields.remove("stringData") else { return };
    let data = fields.entry("data").or_insert_with(|| Value::Object(Map::new()));
    if data.is_null() {
        *data = json!({});
    }
    if let Some(data) = data.as_object_mut() {
        for (name, text) in plain {
            let text = base64::engine::general_purpose::STANDARD.encode(text.as_str().unwrap_or_default());
            data.insert(name, json!(text));
        }
    }
}

fn webhooks(kind: &Kind, object: &mut Value) {
    let mutating = kind.plural.starts_with("mutating");
    for webhook in each(object, "webhooks") {
        put(
            webhook,
            &[
                ("failurePolicy", json!("Fail")),
                ("matchPolicy", json!("Equivalent")),
                ("namespaceSelector", json!({})),
                ("objectSelector", json!({})),
                ("timeoutSeconds", json!(10)),
            ],
        );
        if mutating {
            put(webhook, &[("reinvocationPolicy", json!("Never"))]);
        }
        each(webhook, "rules").for_each(|rule| put(rule, &[("scope", json!("*"))]));
        if let Some(service) = webhook.get_mut("clientConfig").and_then(|config| config.get_mut("service")) {
            put(service, &[("port", json!(443))]);
        }
    }
}
