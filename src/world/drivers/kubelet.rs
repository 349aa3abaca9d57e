//! The scheduler and the kubelet: a pod gets a node at the first round and runs, ready, from the second on. What its
//! containers do is not played.

use crate::world::World;
use crate::world::meta;
use serde_json::{Value, json};

/// The only node.
const NODE: &str = "node-1";
const WHO: &str = "node-controller";

impl World {
    /// One round over all pods.
    pub async fn tick_pods(&self) {
        let Some((kind, pods)) = self.all_of("", "pods") else { return };
        for (key, pod) in pods {
            if meta::deleting(&pod) || pod["status"]["phase"] != "Pending" {
                continue;
            }
            if pod["spec"]["nodeName"].is_null() {
                let mut bound = pod.as_ref().clone();
                bound["spec"]["nodeName"] = json!(NODE);
                // Lost to somebody else's write, it is bound at the next round.
                drop(self.commit(&key, Some(&pod), bound));
                continue;
            }
            let status = running(&pod, &self.stamp());
            self.write_status(&kind, &key, &pod, status, WHO).await;
        }
    }
}

fn running(pod: &Value, now: &str) -> Value {
    let containers = |list: &str| -> Vec<Value> {
        let containers = pod["spec"][list].as_array().into_iter().flatten();
        containers
            .map(|container| {
                json!({"name": container["name"], "image": container["image"], "imageID": "", "ready": true,
                    "started": true, "restartCount": 0, "state": {"running": {"startedAt": now}}})
            })
            .collect()
    };
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let mut status = pod["status"].clone();
    status["phase"] = json!("Running");
    status["startTime"] = json!(now);
    status["podIP"] = json!("10.0.0.1");
    status["podIPs"] = json!([{"ip": "10.0.0.1"}]);
    status["hostIP"] = json!("192.168.0.1");
    status["conditions"] = ["PodScheduled", "Initialized", "ContainersReady", "Ready"].map(condition).into();
    status["containerStatuses"] = containers("containers").into();
    status
}
