//! The pods that scripts run in, as pure functions: a template of what is the same for many, and who a pod is for.

use crate::agent::AGENT_DIR;
use crate::api::{RunResource, Runner, Step, TargetRef, labels};
use crate::plan::overlay::{self, MAIN, RESERVED};
use crate::plan::{key, order, strategic};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, EmptyDirVolumeSource, Pod, PodSecurityContext, PodSpec, PodTemplateSpec,
    ResourceRequirements, SeccompProfile, SecurityContext, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Any user other than root can run the interpreters of an image; this one has no name in any.
const USER: i64 = 65532;
/// Folders of an image that a volume must not hide.
const SYSTEM: [&str; 18] = [
    "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib64", "/media", "/mnt", "/opt", "/proc", "/root", "/run",
    "/sbin", "/srv", "/sys", "/usr", "/var",
];
/// How much longer than its run a pod may live, in seconds, where nobody is left to delete it.
const AFTERLIFE: i64 = 120;
/// Labels and annotations that are Sluice's alone.
const OWN_PREFIX: &str = "sluice.dev/";

/// Why a plugin's pods cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("runner.podTemplateOverlay: {}", faults.join("; "))]
    Overlay { faults: Vec<String> },
    #[error("runner.podTemplateOverlay: what it leaves is no pod template: {why}")]
    Merged { why: String },
}

/// What pods are made of beside their runner.
#[derive(Clone, Debug)]
pub struct PodSettings {
    /// Where pods run whose plugin names no namespace.
    pub runner_namespace: String,
    /// The image that brings the agent: Sluice's own.
    pub agent_image: String,
    pub image_pull_policy: Option<String>,
}

/// Who a pod is for.
pub struct Assignment<'a> {
    pub run: &'a str,
    pub target: &'a TargetRef,
    pub resource: &'a str,
    /// Which of the run's pods it is; see [`labels::PART`].
    pub part: &'a str,
    pub owner: Option<OwnerReference>,
    pub timeout_seconds: u32,
}

impl Assignment<'_> {
    /// The labels that tell it.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let label = |name: &str, value: &str| (name.to_owned(), labels::value(value));
        [
            label(labels::RUN, self.run),
            label(labels::NAMESPACE, &self.target.namespace),
            label(labels::NAME, &self.target.name),
            label(labels::RESOURCE, self.resource),
            label(labels::PART, self.part),
        ]
        .into()
    }

    /// After how many seconds of its life a pod that is `age` seconds old is ended where nobody is left to delete it.
    pub fn deadline(&self, age: i64) -> i64 {
        age.max(0) + i64::from(self.timeout_seconds) + AFTERLIFE
    }
}

/// The namespace of a runner's pods.
pub fn namespace<'a>(runner: &'a Runner, settings: &'a PodSettings) -> &'a str {
    runner.namespace.as_deref().unwrap_or(&settings.runner_namespace)
}

/// The template of the pods of a resource: for all of its steps, or for one where each has a pod of its own.
pub fn of_resource(
    settings: &PodSettings,
    resource: &RunResource,
    step: Option<&Step>,
) -> Result<PodTemplateSpec, TemplateError> {
    let folders = match (&resource.folders, step) {
        (Some(folders), _) => folders.iter().cloned().collect(),
        (None, Some(step)) => order::folders([step]),
        (None, None) => order::folders(&resource.steps),
    };
    template(settings, &resource.runner, &folders)
}

/// The template of the pods of a runner: the agent as PID 1 of its image, then what the plugin lays over it. Meets the
/// `restricted` Pod Security Standard, unless the overlay asks for more.
pub fn template(
    settings: &PodSettings,
    runner: &Runner,
    folders: &BTreeSet<String>,
) -> Result<PodTemplateSpec, TemplateError> {
    let overlay = overlay::overlay(runner).map_err(|faults| TemplateError::Overlay { faults })?;
    let mut template = default(settings, runner, folders);
    let Some(overlay) = overlay else { return Ok(template) };
    let not_merged = |error: serde_json::Error| TemplateError::Merged { why: error.to_string() };
    if let (Some(account), Some(spec)) = (overlay::service_account(&overlay), &mut template.spec) {
        spec.service_account_name = Some(account.to_owned());
        spec.automount_service_account_token = Some(true);
    }
    let mut merged = serde_json::to_value(template).map_err(not_merged)?;
    strategic::merge(&mut merged, &overlay);
    merged["spec"]["restartPolicy"] = Value::from("Never");
    let mut template: PodTemplateSpec = serde_json::from_value(merged).map_err(not_merged)?;
    let metadata = template.metadata.get_or_insert_default();
    let (labels, annotations) = (metadata.labels.take(), metadata.annotations.take());
    let foreign = |marks: Option<BTreeMap<String, String>>| {
        marks.map(|marks| marks.into_iter().filter(|(name, _)| !name.starts_with(OWN_PREFIX)).collect())
    };
    *metadata = ObjectMeta { labels: foreign(labels), annotations: foreign(annotations), ..ObjectMeta::default() };
    Ok(template)
}

/// What tells templates apart: 16 hexadecimal digits.
pub fn hash(template: &PodTemplateSpec) -> String {
    key::hash(&serde_json::to_value(template).unwrap_or_default())
}

/// A pod for one run.
pub fn assigned(name: &str, namespace: &str, template: PodTemplateSpec, to: &Assignment<'_>) -> Pod {
    let mut pod = marked(name, namespace, template, to.labels());
    pod.metadata.owner_references = to.owner.clone().map(|owner| vec![owner]);
    if let Some(spec) = &mut pod.spec {
        spec.active_deadline_seconds = Some(to.deadline(0));
    }
    pod
}

/// A pod of a template with these labels of Sluice's.
pub fn marked(name: &str, namespace: &str, template: PodTemplateSpec, own: BTreeMap<String, String>) -> Pod {
    let metadata = template.metadata.unwrap_or_default();
    let mut labels = metadata.labels.unwrap_or_default();
    labels.extend(own);
    labels.insert("app.kubernetes.io/managed-by".to_owned(), labels::MANAGER.to_owned());
    Pod {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels),
            annotations: metadata.annotations,
            ..ObjectMeta::default()
        },
        spec: template.spec,
        status: None,
    }
}

fn default(settings: &PodSettings, runner: &Runner, folders: &BTreeSet<String>) -> PodTemplateSpec {
    let mut directories = vec![AGENT_DIR.to_owned(), "/tmp".to_owned()];
    directories.extend(folders.iter().filter(|folder| may_be_volume(folder)).cloned());
    let volume = |index: usize| format!("{RESERVED}{index}");
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
    let binary = format!("{AGENT_DIR}/sluice");
    let spec = PodSpec {
        restart_policy: Some("Never".to_owned()),
        termination_grace_period_seconds: Some(5),
        enable_service_links: Some(false),
        service_account_name: runner.service_account_name.clone(),
        automount_service_account_token: Some(runner.service_account_name.is_some()),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile { type_: "RuntimeDefault".to_owned(), ..SeccompProfile::default() }),
            ..PodSecurityContext::default()
        }),
        init_containers: Some(vec![Container {
            name: format!("{RESERVED}agent"),
            image_pull_policy: settings.image_pull_policy.clone(),
            ..agent(&["/sluice", "agent", "install", "--dir", AGENT_DIR], &settings.agent_image, &mounts[..1])
        }]),
        containers: vec![Container {
            name: MAIN.to_owned(),
            ..agent(
                &[&binary, "agent", "serve", "--dir", AGENT_DIR],
                runner.image.as_deref().unwrap_or_default(),
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
    };
    PodTemplateSpec { metadata: None, spec: Some(spec) }
}

/// Whether a folder gets a volume, so that a user other than root can write there.
fn may_be_volume(folder: &str) -> bool {
    let own = ["/tmp", AGENT_DIR].iter().any(|own| folder == *own || folder.starts_with(&format!("{own}/")));
    !own && !SYSTEM.contains(&folder)
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
    use crate::api::{Input, InputAs, Output};
    use rstest::rstest;

    fn settings() -> PodSettings {
        PodSettings { runner_namespace: "sluice".into(), agent_image: "sluice:1".into(), image_pull_policy: None }
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

    fn laid_over(text: &str) -> PodTemplateSpec {
        let mut resource = resource(&[]);
        resource.runner.pod_template_overlay = Some(text.to_owned());
        of_resource(&settings(), &resource, None).unwrap()
    }

    fn folders(template: &PodTemplateSpec) -> Vec<&str> {
        let mounts = template.spec.as_ref().unwrap().containers[0].volume_mounts.as_ref().unwrap();
        mounts.iter().map(|m| m.mount_path.as_str()).collect()
    }

    #[test]
    fn files_have_folders_that_anybody_can_write_but_the_images_own_stay() {
        let resource = resource(&["/in/a", "/in/b", "/etc/c", "/tmp/d/e", "/app/in/f"]);
        let template = of_resource(&settings(), &resource, None).unwrap();
        assert_eq!(folders(&template), ["/.sluice", "/tmp", "/app/in", "/in", "/out"]);
        assert_eq!(template.spec.unwrap().volumes.unwrap().len(), 5);
    }

    #[test]
    fn a_pod_of_one_step_has_its_folders_alone_and_one_of_a_plugin_with_warm_pods_those_of_all() {
        let mut resource = resource(&["/in/a"]);
        resource.steps.push(Step::default());
        let of_step = |resource: &RunResource| of_resource(&settings(), resource, Some(&resource.steps[1])).unwrap();
        assert_eq!(folders(&of_step(&resource)), ["/.sluice", "/tmp"]);
        resource.folders = Some(vec!["/all".into()]);
        assert_eq!(folders(&of_step(&resource)), ["/.sluice", "/tmp", "/all"]);
    }

    #[test]
    fn a_pod_outlives_its_run_by_little_however_old_it_was() {
        let target = TargetRef { namespace: "shop".into(), name: "x".into(), ..TargetRef::default() };
        let to = Assignment { run: "r", target: &target, resource: "db", part: "0", owner: None, timeout_seconds: 30 };
        let template = of_resource(&settings(), &resource(&[]), None).unwrap();
        let pod = assigned("r-0", "plugins", template, &to);
        assert_eq!(pod.spec.unwrap().active_deadline_seconds, Some(150));
        assert_eq!(to.deadline(3600), 3750);
        assert_eq!(to.deadline(-5), 150);
    }

    #[test]
    fn an_overlay_is_merged_by_name_and_leaves_what_is_sluices() {
        let template = laid_over(
            "metadata: {labels: {team: a, sluice.dev/run: forged, app.kubernetes.io/managed-by: me}, annotations: {a: b, sluice.dev/x: z}}
spec:
  restartPolicy: ''
  serviceAccountName: reader
  nodeSelector: {disk: ssd}
  volumes: [{name: data, emptyDir: {}}]
  containers:
  - {name: side, image: 'side:1'}
  - name: main
    env: [{name: A, value: b}]
    volumeMounts: [{name: data, mountPath: /tmp}, {name: data, mountPath: /data}]
    securityContext: {runAsUser: 0, runAsNonRoot: false}
    resources: {limits: {memory: 1Gi}}",
        );
        let to = BTreeMap::from([(labels::RUN.to_owned(), "r".to_owned())]);
        let pod = marked("p", "plugins", template, to);
        let labels = pod.metadata.labels.unwrap();
        assert_eq!(
            (labels["team"].as_str(), labels[labels::RUN].as_str(), labels["app.kubernetes.io/managed-by"].as_str()),
            ("a", "r", "sluice")
        );
        assert_eq!(pod.metadata.annotations.unwrap(), [("a".to_owned(), "b".to_owned())].into());
        let spec = pod.spec.unwrap();
        assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
        assert_eq!(spec.service_account_name.as_deref(), Some("reader"));
        assert_eq!(spec.automount_service_account_token, Some(true));
        let [main, side] = spec.containers.as_slice() else { panic!("{:?}", spec.containers) };
        assert_eq!((main.image.as_deref(), side.image.as_deref()), (Some("psql:16"), Some("side:1")));
        let mounts: Vec<_> =
            main.volume_mounts.iter().flatten().map(|m| (m.mount_path.as_str(), m.name.as_str())).collect();
        assert_eq!(mounts, [("/.sluice", "sluice-0"), ("/tmp", "data"), ("/out", "sluice-2"), ("/data", "data")]);
        let security = main.security_context.as_ref().unwrap();
        assert_eq!((security.run_as_user, security.allow_privilege_escalation), (Some(0), Some(false)));
        let limits = main.resources.as_ref().unwrap().limits.as_ref().unwrap();
        assert_eq!((limits["cpu"].0.as_str(), limits["memory"].0.as_str()), ("1", "1Gi"));
        assert_eq!(spec.security_context.unwrap().run_as_user, Some(USER));
    }

    #[test]
    fn no_overlay_makes_a_pod_look_like_a_server_of_sluice() {
        let chart = include_str!("../../charts/sluice/templates/_names.tpl");
        assert!(chart.contains(&format!("\n{}: server\n", labels::COMPONENT)), "the chart selects by it");
        let text = format!(
            "metadata: {{labels: {{app.kubernetes.io/name: sluice, app.kubernetes.io/instance: sluice, {}: server}}}}",
            labels::COMPONENT
        );
        let target = TargetRef { namespace: "shop".into(), name: "x".into(), ..TargetRef::default() };
        let to = Assignment { run: "r", target: &target, resource: "db", part: "0", owner: None, timeout_seconds: 30 };
        let pod = assigned("r-0", "sluice", laid_over(&text), &to);
        let labels = pod.metadata.labels.unwrap();
        assert_eq!(labels["app.kubernetes.io/name"], "sluice");
        assert_eq!(labels.get(labels::COMPONENT), None);
    }

    #[rstest]
    #[case("ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: a, uid: b}]", "ownerReferences")]
    #[case("finalizers: [example.com/never]", "finalizers")]
    #[case("generateName: p-", "generateName")]
    #[case("uid: a", "uid")]
    fn an_overlay_sets_no_metadata_but_labels_and_annotations(#[case] metadata: &str, #[case] field: &str) {
        let mut resource = resource(&[]);
        resource.runner.pod_template_overlay = Some(format!("metadata: {{{metadata}}}"));
        let error = of_resource(&settings(), &resource, None).unwrap_err().to_string();
        assert!(error.starts_with(&format!("runner.podTemplateOverlay: metadata.{field}: ")), "{error}");
    }

    #[test]
    fn a_token_is_mounted_only_where_an_account_is_named_or_the_overlay_says_so() {
        let mounted = |text: &str| laid_over(text).spec.unwrap().automount_service_account_token;
        assert_eq!(mounted("{}"), Some(false));
        assert_eq!(mounted("spec: {serviceAccountName: a}"), Some(true));
        assert_eq!(mounted("spec: {serviceAccountName: a, automountServiceAccountToken: false}"), Some(false));
        assert_eq!(mounted("spec: {automountServiceAccountToken: true}"), Some(true));
    }

    #[test]
    fn a_faulty_overlay_is_told_though_it_was_stored() {
        let mut resource = resource(&[]);
        resource.runner.pod_template_overlay = Some("metadata: {name: p}".to_owned());
        let error = of_resource(&settings(), &resource, None).unwrap_err().to_string();
        assert!(error.starts_with("runner.podTemplateOverlay: metadata.name: \"p\" cannot be"), "{error}");
    }

    #[test]
    fn templates_with_a_hash_in_common_are_the_same() {
        assert_eq!(hash(&laid_over("{}")), hash(&laid_over("{}")));
        assert_ne!(hash(&laid_over("{}")), hash(&laid_over("metadata: {labels: {a: b}}")));
    }
}
