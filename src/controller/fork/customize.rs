//! What is different in a fork's containers: images and variables.

use super::{ForkError, OutputKey, Owner};
use crate::api::{EnvOperation, EnvVar, Fork};
use crate::plan::bounds::MOST_BYTES;
use serde_json::{Value, json};

pub(super) fn customize(pod: &mut Value, owner: Owner<'_>, fork: &Fork, key: &OutputKey<'_>) -> Result<(), ForkError> {
    let names: Vec<String> = pod["containers"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|c| c["name"].as_str().map(str::to_owned))
        .collect();
    let known = names.join(", ");
    let exists = |field: String, container: &str| {
        if names.iter().any(|name| name == container) {
            return Ok(());
        }
        Err(ForkError::NoContainer { field, container: container.to_owned(), known: known.clone() })
    };
    let custom = fork.customizations.clone().unwrap_or_default();
    for (index, image) in custom.images.iter().enumerate() {
        let container = match &image.container {
            Some(container) => {
                exists(format!("images[{index}].container"), container)?;
                container.clone()
            }
            None if names.len() == 1 => names[0].clone(),
            None => return Err(ForkError::WhichContainer { index, known: known.clone() }),
        };
        for found in pod["containers"].as_array_mut().into_iter().flatten().filter(|c| c["name"] == json!(container)) {
            found["image"] = json!(image.image);
        }
    }
    for container in pod["containers"].as_array_mut().into_iter().flatten() {
        for (name, value) in [
            ("SIGNADOT_SANDBOX_NAME", owner.name),
            ("SIGNADOT_SANDBOX_ROUTING_KEY", owner.routing_key),
            ("SLUICE_SANDBOX_NAME", owner.name),
            ("SLUICE_SANDBOX_ROUTING_KEY", owner.routing_key),
        ] {
            set_env(container, name, Some(json!({"name": name, "value": value})));
        }
    }
    fits(&custom.env, names.len())?;
    for (index, env) in custom.env.iter().enumerate() {
        if let Some(container) = &env.container {
            exists(format!("env[{index}].container"), container)?;
        }
        let entry = (env.operation != Some(EnvOperation::Delete)).then(|| variable(env, owner, key));
        for container in pod["containers"].as_array_mut().into_iter().flatten() {
            if env.container.as_ref().is_none_or(|wanted| container["name"] == json!(wanted)) {
                set_env(container, &env.name, entry.clone());
            }
        }
    }
    Ok(())
}

/// A variable without a container is written into each of them, and a baseline may have thousands.
fn fits(variables: &[EnvVar], containers: usize) -> Result<(), ForkError> {
    let size = |env: &EnvVar| 64 + env.name.len() + env.value.as_ref().map_or(0, String::len);
    let times = |env: &EnvVar| if env.container.is_some() { 1 } else { containers };
    let bytes = variables.iter().fold(0_usize, |sum, env| sum.saturating_add(size(env).saturating_mul(times(env))));
    if bytes > MOST_BYTES { Err(ForkError::Variables { containers, bytes }) } else { Ok(()) }
}

fn variable(env: &EnvVar, owner: Owner<'_>, key: &OutputKey<'_>) -> Value {
    let Some(from) = &env.value_from else {
        return json!({"name": env.name, "value": env.value.clone().unwrap_or_default()});
    };
    let source = if let Some(output) = &from.resource {
        let key = key(&output.name, &output.output_key).unwrap_or_else(|| output.output_key.clone());
        json!({"secretKeyRef": {"name": owner.outputs, "key": key}})
    } else if let Some(map) = &from.config_map {
        json!({"configMapKeyRef": {"name": map.name, "key": map.key}})
    } else {
        let secret = from.secret.clone().unwrap_or_default();
        json!({"secretKeyRef": {"name": secret.name, "key": secret.key}})
    };
    json!({"name": env.name, "valueFrom": source})
}

fn set_env(container: &mut Value, name: &str, entry: Option<Value>) {
    if !container["env"].is_array() {
        container["env"] = json!([]);
    }
    let Some(list) = container["env"].as_array_mut() else { return };
    let at = list.iter().position(|known| known["name"] == json!(name));
    match (at, entry) {
        (Some(at), Some(entry)) => list[at] = entry,
        (Some(at), None) => drop(list.remove(at)),
        (None, Some(entry)) => list.push(entry),
        (None, None) => {}
    }
}
