//! The outputs that a sandbox's forks use, in Secrets beside it.
//!
//! A Secret is made once and never changed: its name is of its content, so a fork whose outputs change names another
//! Secret, and rolls. That takes no right in other namespaces but to create Secrets, whose answer shows nothing that
//! Sluice did not send itself. What a later content has replaced goes with the sandbox.
//!
//! The name shows in the fork's pod template, to more than may read Secrets. A salt that only Sluice's namespace knows
//! keeps them from trying contents against it, and keeps everybody from making the next Secret first.

use super::{Context, ControllerError};
use crate::api::{API_VERSION, SandboxSpec, TargetRef, labels};
use crate::engine::index::RunEntry;
use crate::engine::is_status;
use crate::engine::outputs::{self, Outputs};
use crate::plan::{check, runs};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Api;
use kube::api::{ObjectMeta, PostParams};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The Secret in Sluice's namespace with the salt of the names.
pub const SALT_SECRET: &str = "sluice-outputs";
/// Its key, and the length of what is there in bytes.
const SALT: &str = "salt";
const SALT_BYTES: usize = 32;
/// The bytes of a hash that a name has.
const NAME_BYTES: usize = 16;
/// What a name may take of the sandbox's, in bytes.
const NAME_OF_SANDBOX: usize = 190;

/// What names are made with, as it was first read or made.
pub type Salt = tokio::sync::OnceCell<Vec<u8>>;

/// Puts the outputs that forks ask for, and no others, into a Secret beside the sandbox; its name. Empty where no fork
/// asks for one.
pub async fn keep(
    context: &Context,
    target: &TargetRef,
    spec: &SandboxSpec,
    object: &Value,
) -> Result<String, ControllerError> {
    let envs = spec.forks.iter().filter_map(|fork| fork.customizations.as_ref()).flat_map(|c| &c.env);
    let wanted: Vec<_> =
        envs.filter_map(|env| env.value_from.as_ref()).filter_map(|from| from.resource.as_ref()).collect();
    if wanted.is_empty() {
        return Ok(String::new());
    }
    let generation = object["metadata"]["generation"].as_i64().unwrap_or_default();
    let mut runs = context.engine.index.of_target(target);
    runs.retain(|run: &Arc<RunEntry>| run.is_of_stored(generation));
    let known: Outputs = outputs::load(&context.client, context.engine.namespace(), &runs).await?;
    let mut data = BTreeMap::new();
    for wanted in wanted {
        let Some(key) = key(context, object, &wanted.name, &wanted.output_key) else { continue };
        let mut parts = key.splitn(3, '.');
        let (Some(resource), Some(step), Some(output)) = (parts.next(), parts.next(), parts.next()) else { continue };
        if let Some(content) = known.get(resource, step, output) {
            data.insert(key.clone(), ByteString(content.to_vec()));
        }
    }
    let salt = context.salt.get_or_try_init(|| salt(context)).await?;
    let secret = secret(target, data, salt);
    let name = secret.metadata.name.clone().unwrap_or_default();
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), &target.namespace);
    let params = PostParams { field_manager: Some(labels::MANAGER.to_owned()), ..PostParams::default() };
    match secrets.create(&params, &secret).await {
        Ok(_) => Ok(name),
        // That of an earlier look. Only who may write Secrets here has seen the name, and can have put another in its
        // place: into a sandbox of their own namespace, which they could write to anyway.
        Err(error) if is_status(&error, 409) => Ok(name),
        Err(error) => Err(ControllerError::api("write the outputs that forks ask for")(error)),
    }
}

/// Where an output that a fork asks for is in the Secret beside the sandbox.
pub fn key(context: &Context, sandbox: &Value, resource: &str, key: &str) -> Option<String> {
    let plugins = context.plugins.read().unwrap_or_else(std::sync::PoisonError::into_inner);
    let declared = runs::declared(sandbox).ok()?.into_iter().find(|r| r.name == resource)?;
    let plugin = plugins.resolve(&declared.plugin, runs::latest(sandbox).get(resource).map(String::as_str)).ok()?;
    let (step, output) = check::output_key(&plugin.spec, key).ok()?;
    Some(outputs::secret_key(resource, &step, &output))
}

/// The Secret with this content.
fn secret(target: &TargetRef, data: BTreeMap<String, ByteString>, salt: &[u8]) -> Secret {
    let uid = target.uid.clone().unwrap_or_default();
    Secret {
        metadata: ObjectMeta {
            name: Some(name(target, &data, salt)),
            namespace: Some(target.namespace.clone()),
            labels: Some(BTreeMap::from([
                (labels::SANDBOX.to_owned(), labels::value(&target.name)),
                (labels::SANDBOX_UID.to_owned(), uid.clone()),
                (labels::NO_BACKUP.to_owned(), "true".to_owned()),
            ])),
            owner_references: Some(vec![OwnerReference {
                api_version: API_VERSION.to_owned(),
                kind: target.kind.clone(),
                name: target.name.clone(),
                uid,
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        data: Some(data),
        ..Secret::default()
    }
}

/// The name of a content: the sandbox's, and a hash over the salt, the sandbox's UID and each key and value with its
/// length, so that no two contents are the same bytes.
fn name(target: &TargetRef, data: &BTreeMap<String, ByteString>, salt: &[u8]) -> String {
    let mut hash = Sha256::new();
    let uid = target.uid.as_deref().unwrap_or_default().as_bytes();
    let parts = data.iter().flat_map(|(key, value)| [key.as_bytes(), value.0.as_slice()]);
    for part in [salt, uid].into_iter().chain(parts) {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let hash: String = hash.finalize()[..NAME_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-outputs-{hash}", labels::name(&target.name, NAME_OF_SANDBOX))
}

/// Reads the salt, or makes it where there is none.
async fn salt(context: &Context) -> Result<Vec<u8>, ControllerError> {
    let secrets: Api<Secret> = Api::namespaced(context.client.clone(), context.engine.namespace());
    let read = || async {
        let found = secrets.get_opt(SALT_SECRET).await;
        found.map_err(ControllerError::api("read the salt of the names of outputs' Secrets"))
    };
    let salt_of = |secret: Secret| match secret.data.and_then(|mut data| data.remove(SALT)) {
        Some(salt) if salt.0.len() == SALT_BYTES => Ok(salt.0),
        _ => Err(ControllerError::Salt { secret: SALT_SECRET }),
    };
    if let Some(found) = read().await? {
        return salt_of(found);
    }
    let new: [u8; SALT_BYTES] = rand::random();
    let secret = Secret {
        metadata: ObjectMeta {
            name: Some(SALT_SECRET.to_owned()),
            labels: Some([("app.kubernetes.io/managed-by".to_owned(), labels::MANAGER.to_owned())].into()),
            ..ObjectMeta::default()
        },
        immutable: Some(true),
        data: Some([(SALT.to_owned(), ByteString(new.to_vec()))].into()),
        ..Secret::default()
    };
    match secrets.create(&PostParams::default(), &secret).await {
        Ok(_) => Ok(new.to_vec()),
        Err(error) if is_status(&error, 409) => {
            read().await?.map_or(Err(ControllerError::Salt { secret: SALT_SECRET }), salt_of)
        }
        Err(error) => Err(ControllerError::api("write the salt of the names of outputs' Secrets")(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(uid: &str) -> TargetRef {
        TargetRef { name: "x".into(), uid: Some(uid.into()), namespace: "shop".into(), ..TargetRef::default() }
    }

    fn data(of: &[(&str, &str)]) -> BTreeMap<String, ByteString> {
        of.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec()))).collect()
    }

    #[test]
    fn t17_a_secret_of_outputs_has_a_name_of_its_content_and_cannot_be_changed() {
        let password = data(&[("db.make.password", "hunter22")]);
        let made = secret(&target("u"), password.clone(), &[1; 32]);
        assert_eq!(made.immutable, Some(true));
        let owner = &made.metadata.owner_references.clone().unwrap()[0];
        assert_eq!((owner.uid.as_str(), owner.name.as_str()), ("u", "x"));
        let name = made.metadata.name.unwrap();
        assert!(name.starts_with("x-outputs-") && name.len() == "x-outputs-".len() + 32, "{name}");
        assert_eq!(Some(name), secret(&target("u"), password, &[1; 32]).metadata.name);
    }

    #[test]
    fn t17_another_content_sandbox_or_salt_is_another_name() {
        let names = [
            name(&target("u"), &data(&[("a", "bc")]), &[1; 32]),
            name(&target("u"), &data(&[("ab", "c")]), &[1; 32]),
            name(&target("u"), &data(&[("a", "b"), ("c", "")]), &[1; 32]),
            name(&target("u"), &data(&[]), &[1; 32]),
            name(&target("v"), &data(&[("a", "bc")]), &[1; 32]),
            name(&target("u"), &data(&[("a", "bc")]), &[2; 32]),
        ];
        let distinct: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len());
    }

    #[test]
    fn a_long_name_of_a_sandbox_leaves_room_for_the_hash() {
        let long = TargetRef { name: "x".repeat(253), ..target("u") };
        assert!(name(&long, &data(&[]), &[1; 32]).len() <= 253);
    }
}
