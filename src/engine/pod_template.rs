//! The pod that a resource's scripts run in, as a pure function.

use crate::agent::AGENT_DIR as AGENT_DIRECTORY;
use crate::api::{RunResource, labels};
use crate::plan::order;
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, Pod, PodSecurityContext, PodSpec, ResourceRequirements,
    SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use std::collections::BTreeSet;

/// Any user other than root can run the interpreters of an image; this one has no name in any.
const USER: i64 = 65532;
/// Folders of an image that a volume must not hide.
const SYSTEM: [&str; 18] = [
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
    "/sbin", "/srv", "/sys", "/usr", "/var",
];
/// How much longer than its run a pod may live, in seconds, where nobody is left to delete it.
const AFTERLIFE: i64 = 120;

/// What a step pod is made of beside its resource.
pub struct PodContext<'a> {
    pub name: String,
    pub namespace: &'a str,
    pub run: &'a str,
    pub target_namespace: &'a str,
    pub target_name: &'a str,
    pub agent_image: &'a str,
    pub image_pull_policy: Option<&'a str>,
    pub timeout_seconds: u32,
    pub owner: Option<OwnerReference>,
}

/// The pod for `resource`'s scripts: the agent as PID 1 of the runner's image. Meets the `restricted` Pod Security
/// Standard.
pub fn pod(context: &PodContext<'_>, resource: &RunResource) -> Pod {
    let mut directories = vec![AGENT_DIRECTORY.to_owned(), "/tmp".to_owned()];
    directories.extend(file_directories(resource));
    let volume = |index: usize| format!("v{index}");
    let mounts: Vec<VolumeMount> = directories
        .iter()
        .enumerate()
        .map(|(index, path)| VolumeMount { name: volume(index), mount_path: path.clone(), ..VolumeMount::default() })
        .collect();
    let agent = |arguments: &[&str], image: &str, mounts: &[VolumeMount]| Container {
        image: Some(image.to_owned()),
        command: Some(arguments.iter().map(|a| (*a).to_owned()).collect()),
        resources: Some(resources()),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts.to_vec()),
        ..Container::default()
    };
    let binary = format!("{AGENT_DIRECTORY}/sluice");
    let label = |name: &str, value: &str| (name.to_owned(), labels::value(value));
    Pod {
        metadata: ObjectMeta {
            name: Some(context.name.clone()),
            namespace: Some(context.namespace.to_owned()),
            labels: Some(
                [
                    label(labels::RUN, context.run),
                    label(labels::NAMESPACE, context.target_namespace),
                    label(labels::NAME, context.target_name),
                    label(labels::RESOURCE, &resource.name),
                    label("app.kubernetes.io/managed-by", labels::MANAGER),
                ]
                .into(),
            ),
            owner_references: context.owner.clone().map(|owner| vec![owner]),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec {
            restart_policy: Some("Never".to_owned()),
            termination_grace_period_seconds: Some(5),
            active_deadline_seconds: Some(i64::from(context.timeout_seconds) + AFTERLIFE),
            enable_service_links: Some(false),
            service_account_name: resource.runner.service_account_name.clone(),
            automount_service_account_token: Some(resource.runner.service_account_name.is_some()),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    ..SeccompProfile::default()
                }),
                ..PodSecurityContext::default()
            }),
            init_containers: Some(vec![Container {
                name: "agent".to_owned(),
                image_pull_policy: context.image_pull_policy.map(str::to_owned),
                ..agent(&["/sluice", "agent", "install", "--dir", AGENT_DIRECTORY], context.agent_image, &mounts[..1])
            }]),
            containers: vec![Container {
                name: "main".to_owned(),
                ..agent(
                    &[&binary, "agent", "serve", "--dir", AGENT_DIRECTORY],
                    resource.runner.image.as_deref().unwrap_or_default(),
                    &mounts,
                )
            }],
            volumes: Some(
                (0..mounts.len())
                    .map(|index| Volume {
                        name: volume(index),
                        empty_dir: Some(EmptyDirVolumeSource::default()),
                        ..Volume::default()
                    })
                    .collect(),
            ),
            ..PodSpec::default()
        }),
        status: None,
    }
}

/// The folders of the files that the scripts read and leave, so that a user other than root can write there.
fn file_directories(resource: &RunResource) -> BTreeSet<String> {
    let parents =
        resource.steps.iter().flat_map(order::paths).filter_map(|path| path.rsplit_once('/').map(|(dir, _)| dir));
    parents
        .filter(|dir| {
            let own = ["/tmp", AGENT_DIRECTORY].iter().any(|o| dir == o || dir.starts_with(&format!("{o}/")));
            !own && !SYSTEM.contains(dir)
        })
        .map(str::to_owned)
        .collect()
}

fn resources() -> ResourceRequirements {
    let quantities = |cpu: &str, memory: &str| {
        Some([("cpu".to_owned(), Quantity(cpu.to_owned())), ("memory".to_owned(), Quantity(memory.to_owned()))].into())
    };
    ResourceRequirements {
        requests: quantities("10m", "32Mi"),
        limits: quantities("1", "512Mi"),
        ..ResourceRequirements::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{Input, InputAs, Output, Runner, Step};

    fn context() -> PodContext<'static> {
        PodContext {
            name: "pre-create-k-1-0".into(),
            namespace: "plugins",
            run: "pre-create-k-1",
            target_namespace: "shop",
            target_name: "x",
            agent_image: "sluice:1",
            image_pull_policy: None,
            timeout_seconds: 30,
            owner: None,
        }
    }

    fn resource(paths: &[&str]) -> RunResource {
        let input = |path: &&str| Input {
            as_: Some(InputAs { path: Some((*path).to_owned()), env: None }),
            ..Input::default()
        };
        let output = Output { name: "o".into(), value_from_path: Some("/out/o".into()), ..Output::default() };
        let step = Step { inputs: paths.iter().map(input).collect(), outputs: vec![output], ..Step::default() };
        RunResource {
            name: "db".into(),
            runner: Runner { image: Some("psql:16".into()), ..Runner::default() },
            steps: vec![step],
            ..RunResource::default()
        }
    }

    #[test]
    fn files_have_folders_that_anybody_can_write_but_the_images_own_stay() {
        let pod = pod(&context(), &resource(&["/in/a", "/in/b", "/etc/c", "/tmp/d/e", "/app/in/f"]));
        let spec = pod.spec.unwrap();
        let mounts = spec.containers[0].volume_mounts.as_ref().unwrap();
        let paths: Vec<_> = mounts.iter().map(|m| m.mount_path.as_str()).collect();
        assert_eq!(paths, ["/.sluice", "/tmp", "/app/in", "/in", "/out"]);
        assert_eq!(spec.volumes.unwrap().len(), paths.len());
    }

    #[test]
    fn a_pod_outlives_its_run_by_little() {
        assert_eq!(pod(&context(), &resource(&[])).spec.unwrap().active_deadline_seconds, Some(150));
    }
}
