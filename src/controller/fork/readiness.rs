//! When a fork counts as running.

use crate::controller::kept::KeptFork;

/// Whether a fork runs as it should; what it waits for where not. The rules of `kubectl rollout status`.
pub fn readiness(deployment: &KeptFork) -> Result<(), String> {
    let name = deployment.metadata.name.as_deref().unwrap_or_default();
    let Some(status) = &deployment.status else {
        return Err(format!("Deployment {name} has no status yet"));
    };
    if status.observed_generation < deployment.metadata.generation {
        return Err(format!("Deployment {name} has not been observed yet"));
    }
    let failed = status.conditions.iter().flatten().find(|c| {
        (c.type_ == "Progressing" && c.reason.as_deref() == Some("ProgressDeadlineExceeded"))
            || (c.type_ == "ReplicaFailure" && c.status == "True")
    });
    if let Some(condition) = failed {
        return Err(format!("Deployment {name}: {}", condition.message.as_deref().unwrap_or("is not getting on")));
    }
    let wanted = deployment.spec.replicas.unwrap_or(1);
    let (updated, available) = (status.updated_replicas.unwrap_or(0), status.available_replicas.unwrap_or(0));
    if updated < wanted || status.replicas.unwrap_or(0) > updated || available < updated {
        return Err(format!("Deployment {name}: {available} of {wanted} pods available"));
    }
    Ok(())
}
