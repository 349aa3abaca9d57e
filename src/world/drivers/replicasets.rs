//! The ReplicaSet controller: as many pods as were asked for.

use super::{controller_of, controls};
use crate::world::World;
use crate::world::ask::Verb;
use crate::world::meta;
use serde_json::{Value, json};

const WHO: &str = "replicaset-controller";

impl World {
    /// One round over all ReplicaSets.
    pub async fn tick_replicasets(&self) {
        let Some((kind, sets)) = self.all_of("apps", "replicasets") else { return };
        for (key, set) in sets {
            if meta::deleting(&set) {
                continue;
            }
            let Some((pods, all)) = self.all_of("", "pods") else { return };
            let own: Vec<_> =
                all.into_iter().filter(|(_, pod)| controls(&set, pod) && !meta::deleting(pod) && !ended(pod)).collect();
            let wanted = set["spec"]["replicas"].as_u64().unwrap_or(1);
            let wanted = usize::try_from(wanted).unwrap_or(usize::MAX);
            for _ in own.len()..wanted {
                let mut pod = set["spec"]["template"].clone();
                pod["kind"] = json!("Pod");
                pod["apiVersion"] = json!("v1");
                pod["metadata"]["generateName"] = json!(format!("{}-", key.name));
                pod["metadata"]["namespace"] = json!(key.namespace);
                pod["metadata"]["ownerReferences"] = controller_of(&kind, &set);
                self.ask_for(Verb::Create, &pods, &key, &pod, WHO).await;
            }
            for (pod_key, _) in own.iter().skip(wanted) {
                self.ask_for(Verb::Delete, &pods, pod_key, &json!({}), WHO).await;
            }
            let ready = own.iter().filter(|(_, pod)| ready(pod)).count();
            let mut status = json!({"replicas": own.len(), "observedGeneration": set["metadata"]["generation"]});
            if !own.is_empty() {
                status["fullyLabeledReplicas"] = json!(own.len());
            }
            if ready > 0 {
                status["readyReplicas"] = json!(ready);
                status["availableReplicas"] = json!(ready);
            }
            self.write_status(&kind, &key, &set, status, WHO).await;
        }
    }
}

fn ended(pod: &Value) -> bool {
    pod["status"]["phase"] == "Succeeded" || pod["status"]["phase"] == "Failed"
}

fn ready(pod: &Value) -> bool {
    let mut conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
