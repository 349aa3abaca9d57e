//! The Deployment controller: one ReplicaSet for each template, the newest with all replicas.

use super::{controller_of, controls};
use crate::world::World;
use crate::world::ask::Verb;
use crate::world::kinds::Kind;
use crate::world::meta;
use crate::world::store::Key;
use serde_json::{Value, json};
use std::sync::Arc;

const WHO: &str = "deployment-controller";
const HASH: &str = "pod-template-hash";

impl World {
    /// One round over all Deployments. All replicas move at once: there is no rolling update.
    pub async fn tick_deployments(&self) {
        let Some((kind, deployments)) = self.all_of("apps", "deployments") else { return };
        for (key, deployment) in deployments {
            if !meta::deleting(&deployment) {
                self.roll(&kind, &key, &deployment).await;
            }
        }
    }

    async fn roll(&self, kind: &Arc<Kind>, key: &Key, deployment: &Value) {
        let Some((sets, all)) = self.all_of("apps", "replicasets") else { return };
        let hash = hash(&deployment["spec"]["template"]);
        let own: Vec<_> = all.into_iter().filter(|(_, set)| controls(deployment, set)).collect();
        let replicas = deployment["spec"]["replicas"].clone();
        let current = own.iter().find(|(_, set)| set["metadata"]["labels"][HASH] == hash.as_str());
        if current.is_none() && deployment["spec"]["paused"] != true {
            let set = new_set(kind, key, deployment, &hash);
            self.ask_for(Verb::Create, &sets, key, &set, WHO).await;
        }
        for (set_key, set) in &own {
            let newest = set["metadata"]["labels"][HASH] == hash.as_str();
            // The older give way once the newest is ready.
            let ready = current.is_some_and(|(_, set)| set["status"]["readyReplicas"] == replicas || replicas == 0);
            let wanted = if newest {
                replicas.clone()
            } else if ready {
                json!(0)
            } else {
                continue;
            };
            if set["spec"]["replicas"] != wanted {
                let mut set = set.as_ref().clone();
                set["spec"]["replicas"] = wanted;
                self.ask_for(Verb::Update, &sets, set_key, &set, WHO).await;
            }
        }
        let current = current.map(|(_, set)| set.as_ref());
        let total: i64 = own.iter().filter_map(|(_, set)| set["status"]["replicas"].as_i64()).sum();
        let status = self.deployment_status(deployment, current, total);
        self.write_status(kind, key, deployment, status, WHO).await;
    }

    fn deployment_status(&self, deployment: &Value, current: Option<&Value>, total: i64) -> Value {
        let count = |field: &str| current.and_then(|set| set["status"][field].as_i64()).unwrap_or_default();
        let wanted = deployment["spec"]["replicas"].as_i64().unwrap_or(1);
        let (updated, ready) = (count("replicas"), count("readyReplicas"));
        let mut status = json!({"observedGeneration": deployment["metadata"]["generation"]});
        for (field, number) in [
            ("replicas", total),
            ("updatedReplicas", updated),
            ("readyReplicas", ready),
            ("availableReplicas", ready),
            ("unavailableReplicas", wanted.saturating_sub(ready)),
        ] {
            if number > 0 {
                status[field] = json!(number);
            }
        }
        let available = ready >= wanted;
        let state = |good: bool| if good { "True" } else { "False" };
        let progress = if available && updated == wanted && total == wanted {
            "NewReplicaSetAvailable"
        } else {
            "ReplicaSetUpdated"
        };
        let mut conditions = Vec::new();
        for (kind, good, reason) in [
            ("Available", available, if available { "MinimumReplicasAvailable" } else { "MinimumReplicasUnavailable" }),
            ("Progressing", true, progress),
        ] {
            let known = deployment["status"]["conditions"].as_array().into_iter().flatten();
            let mut same = known.filter(|c| c["type"] == kind && c["status"] == state(good) && c["reason"] == reason);
            conditions.push(same.next().cloned().unwrap_or_else(|| {
                json!({"type": kind, "status": state(good), "reason": reason, "message": "",
                    "lastTransitionTime": self.stamp(), "lastUpdateTime": self.stamp()})
            }));
        }
        status["conditions"] = json!(conditions);
        status
    }
}

fn new_set(kind: &Kind, key: &Key, deployment: &Value, hash: &str) -> Value {
    let mut template = deployment["spec"]["template"].clone();
    let mut selector = deployment["spec"]["selector"].clone();
    template["metadata"]["labels"][HASH] = json!(hash);
    selector["matchLabels"][HASH] = json!(hash);
    json!({"kind": "ReplicaSet", "apiVersion": "apps/v1",
        "metadata": {"name": format!("{}-{hash}", key.name), "namespace": key.namespace,
            "labels": template["metadata"]["labels"], "ownerReferences": controller_of(kind, deployment)},
        "spec": {"replicas": deployment["spec"]["replicas"], "selector": selector, "template": template}})
}

/// A short name of a template (FNV-1a); the original's differ, and nothing may depend on them.
fn hash(template: &Value) -> String {
    let mut hash: u32 = 0x811C_9DC5;
    for byte in template.to_string().bytes() {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    format!("{hash:08x}")
}
