//! What the tests do with the cluster: kubectl and helm, and waiting for what must become true.

use crate::turns::{Mode, Turn};
pub use crate::watch::{Event, Watch};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Where the chart is installed.
pub const SLUICE: &str = "sluice-system";
/// Where plugins run that name no namespace.
pub const RUNNERS: &str = "sluice-runners";
/// What a container (YAML) needs to be let into a namespace of the `restricted` standard, as the runners' is.
pub const RESTRICTED: &str = "securityContext: {runAsNonRoot: true, runAsUser: 65532, allowPrivilegeEscalation: false, \
     capabilities: {drop: [ALL]}, seccompProfile: {type: RuntimeDefault}}";
/// Who Sluice is to the API server.
pub const OWN_USER: &str = "system:serviceaccount:sluice-system:sluice";
/// The service account that the tests' `apply` steps act as: it may write ConfigMaps everywhere.
pub const EDITOR: &str = "e2e-editor";

static COUNT: AtomicU32 = AtomicU32::new(0);
static SET_UP: Once = Once::new();

/// How a command ended.
#[derive(Debug)]
pub struct Outcome {
    pub success: bool,
    pub stdout: String,
    pub stderr: String,
    pub took: Duration,
}

impl Outcome {
    /// Fails the test, with what was said, where the command failed.
    #[track_caller]
    pub fn ok(self) -> Self {
        assert!(self.success, "the command failed after {:?}:\n{}{}", self.took, self.stdout, self.stderr);
        self
    }

    /// Fails the test where the command did not fail.
    #[track_caller]
    pub fn refused(self) -> Self {
        assert!(!self.success, "the command succeeded, but should not have:\n{}{}", self.stdout, self.stderr);
        self
    }
}

/// Runs a program with this standard input.
pub fn run(program: &str, arguments: &[&str], input: &str) -> Outcome {
    run_in(Path::new("."), program, arguments, input)
}

pub fn run_in(directory: &Path, program: &str, arguments: &[&str], input: &str) -> Outcome {
    let began = Instant::now();
    let mut child = Command::new(program)
        .args(arguments)
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{program} cannot be run ({error}): `make e2e` puts it on the path"));
    // A program that reads no input may be gone before it is written.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    let output = child.wait_with_output().unwrap();
    Outcome {
        success: output.status.success(),
        stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
        stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        took: began.elapsed(),
    }
}

/// `kubectl ARGUMENTS`
pub fn kubectl(arguments: &[&str]) -> Outcome {
    run("kubectl", arguments, "")
}

/// `kubectl ARGUMENTS -f -` with a manifest.
pub fn kubectl_file(arguments: &[&str], manifest: &str) -> Outcome {
    run("kubectl", &[arguments, &["-f", "-"]].concat(), manifest)
}

/// `kubectl apply -f -`
pub fn apply(manifest: &str) -> Outcome {
    kubectl_file(&["apply"], manifest)
}

/// `kubectl get ARGUMENTS -o json`; none where it is not there.
pub fn get(arguments: &[&str]) -> Option<Value> {
    let got = kubectl(&[&["get"], arguments, &["-o", "json", "--ignore-not-found"]].concat()).ok();
    if got.stdout.trim().is_empty() { None } else { Some(serde_json::from_str(&got.stdout).unwrap()) }
}

/// The items of `kubectl get ARGUMENTS -o json`, of which there may be none.
pub fn list(arguments: &[&str]) -> Vec<Value> {
    get(arguments).map_or_else(Vec::new, |list| list["items"].as_array().unwrap().clone())
}

/// Waits until `check` finds something.
#[track_caller]
pub fn eventually<T>(within: Duration, what: &str, mut check: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = check() {
            return found;
        }
        assert!(began.elapsed() < within, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A test's own namespace; gone after it.
pub struct Space {
    pub namespace: String,
    _turn: Option<Turn>,
}

impl Space {
    /// Beside other tests.
    pub fn new(what: &str) -> Self {
        Self::with(what, Some(Turn::take(Mode::Beside)))
    }

    /// With no other test beside it, for one that takes Sluice down or changes how it is installed.
    pub fn alone(what: &str) -> Self {
        Self::with(what, Some(Turn::take(Mode::Alone)))
    }

    /// With three replicas, beside others that want as many.
    pub fn of_three(what: &str) -> Self {
        Self::with(what, Some(Turn::take(Mode::Three)))
    }

    /// Another namespace of the same test.
    pub fn and(&self, what: &str) -> Self {
        Self::with(what, None)
    }

    fn with(what: &str, turn: Option<Turn>) -> Self {
        SET_UP.call_once(set_up);
        let namespace = format!("{what}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        kubectl(&["create", "namespace", &namespace]).ok();
        Self { namespace, _turn: turn }
    }

    /// A cluster-scoped name of this test alone.
    pub fn name(&self, base: &str) -> String {
        format!("{base}-{}", self.namespace)
    }

    /// Applies a plugin with these fields of its spec (YAML, indented by two).
    pub fn plugin(&self, base: &str, spec: &str) -> String {
        let name = self.name(base);
        apply(&plugin(&name, spec)).ok();
        name
    }

    /// A Sandbox of this namespace with these fields of its spec (YAML, indented by two).
    pub fn sandbox(&self, name: &str, spec: &str) -> String {
        format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: Sandbox\nmetadata: {{name: {name}, namespace: {}}}\nspec:\n{spec}\n",
            self.namespace
        )
    }

    /// A Deployment of this namespace to fork, whose pods carry the label `app: NAME` and end at once.
    pub fn workload(&self, name: &str, replicas: u32) {
        apply(&format!(
            "
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: {namespace}}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: {name}}}}}
  template:
    metadata: {{labels: {{app: {name}}}}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{{name: main, image: '{image}', command: [sleep, '3600']}}]
",
            namespace = self.namespace,
            image = step_image()
        ))
        .ok();
    }

    /// An object of this namespace.
    pub fn get(&self, kind: &str, name: &str) -> Option<Value> {
        get(&["-n", &self.namespace, kind, name])
    }

    /// The runs of a sandbox of this namespace, in the order in which they began.
    pub fn runs(&self, name: &str) -> Vec<Value> {
        let of = format!("sluice.dev/namespace={},sluice.dev/name={name}", self.namespace);
        let mut runs = list(&["phaseruns", "-l", &of]);
        runs.sort_by_key(|run| run["status"]["startedAt"].as_str().unwrap_or("~").to_owned());
        runs
    }

    /// The one run of this phase; fails where there are more or none.
    #[track_caller]
    pub fn run(&self, name: &str, phase: &str) -> Value {
        let mut runs = self.runs(name);
        runs.retain(|run| run["spec"]["phase"] == phase);
        assert_eq!(runs.len(), 1, "{phase} of {name} ran {} times: {runs:#?}", runs.len());
        runs.remove(0)
    }

    /// How many runs there are of each phase.
    pub fn count(&self, name: &str) -> BTreeMap<String, usize> {
        let mut count = BTreeMap::new();
        for run in self.runs(name) {
            *count.entry(run["spec"]["phase"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        count
    }

    /// Waits until every phase of the newest change of a sandbox has run.
    #[track_caller]
    pub fn settle(&self, name: &str) -> Value {
        eventually(Duration::from_secs(90), "PhasesComplete of the newest generation", || {
            let sandbox = self.get("sandbox", name)?;
            let complete = condition(&sandbox, "PhasesComplete")?;
            let newest = complete["observedGeneration"] == sandbox["metadata"]["generation"];
            (newest && complete["status"] == "True").then_some(sandbox)
        })
    }

    /// Waits until a sandbox has settled and Sluice has written all that it has to write about it: what became of each
    /// run, the status that tells of it, and the events.
    #[track_caller]
    pub fn rest(&self, name: &str) -> Value {
        self.settle(name);
        eventually(Duration::from_secs(60), "the status and the events tell of every phase", || {
            let sandbox = self.get("sandbox", name)?;
            let about = format!("involvedObject.kind=Sandbox,involvedObject.name={name}");
            let events = list(&["-n", &self.namespace, "events", "--field-selector", &about]);
            let all_told = self.count(name).keys().all(|phase| {
                let pre = phase.starts_with("Pre");
                let end = if pre { "Committed" } else { "Succeeded" };
                let told = sandbox["status"]["phases"].as_array().into_iter().flatten();
                told.clone().any(|told| told["phase"] == *phase && told["state"] == end)
                    && events.iter().any(|event| event["reason"] == format!("{phase}Succeeded"))
            });
            all_told.then_some(sandbox)
        })
    }

    /// Waits until the run of this phase has ended as it should.
    #[track_caller]
    pub fn settled_run(&self, name: &str, phase: &str, state: &str) -> Value {
        eventually(Duration::from_secs(90), &format!("{phase} of {name} is {state}"), || {
            self.runs(name).into_iter().find(|run| run["spec"]["phase"] == phase && run["status"]["state"] == state)
        })
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            kubectl(&["delete", "namespace", &self.namespace, "--wait=false"]);
        }
    }
}

/// A ResourcePlugin with these fields of its spec (YAML, indented by two).
pub fn plugin(name: &str, spec: &str) -> String {
    format!("apiVersion: sluice.dev/v1alpha1\nkind: ResourcePlugin\nmetadata: {{name: {name}}}\nspec:\n{spec}\n")
}

/// A step (YAML) that keeps a ConfigMap beside the sandbox, with this data (YAML, the inside of a map).
pub fn keeps(step: &str, config_map: &str, data: &str) -> String {
    format!(
        "{{name: {step}, apply: {{manifests: [{{apiVersion: v1, kind: ConfigMap, metadata: {{name: \"{config_map}\"}}, \
         data: {{{data}}}}}]}}}}"
    )
}

/// The spec of a plugin whose phases each keep a ConfigMap `PHASE-SANDBOX` that says what the description was.
pub fn witnesses() -> String {
    let mut spec = format!("  runner: {{serviceAccountName: {EDITOR}}}\n");
    for (field, slug) in [
        ("preCreate", "pre-create"),
        ("postCreate", "post-create"),
        ("preUpdate", "pre-update"),
        ("postUpdate", "post-update"),
        ("preDelete", "pre-delete"),
        ("postDelete", "post-delete"),
    ] {
        let data = "description: \"${sandbox.spec.?description.orValue('none')}\"";
        let step = keeps(slug, &format!("{slug}-${{sandbox.metadata.name}}"), data);
        spec += &format!("  {field}: [{step}]\n");
    }
    spec
}

/// The image of the tests' scripts: any that has sh.
pub fn step_image() -> String {
    std::env::var("SLUICE_TEST_STEP_IMAGE")
        .unwrap_or_else(|_| panic!("SLUICE_TEST_STEP_IMAGE must name an image with sh: run `make e2e`"))
}

/// A step of a run, as its status has it.
pub fn step<'a>(run: &'a Value, name: &str) -> &'a Value {
    run["status"]["steps"].as_array().unwrap().iter().find(|step| step["step"] == name).unwrap()
}

/// The end of what a step printed.
pub fn log<'a>(run: &'a Value, name: &str) -> &'a str {
    step(run, name)["log"].as_str().unwrap_or_default()
}

/// A condition of an object.
pub fn condition(object: &Value, kind: &str) -> Option<Value> {
    object["status"]["conditions"].as_array()?.iter().find(|c| c["type"] == kind).cloned()
}

/// What all tests need once, and once more where Sluice's namespace was deleted.
pub fn set_up() {
    kubectl(&["-n", SLUICE, "rollout", "status", "deployment/sluice", "--timeout=60s"]).ok();
    apply(&format!(
        "
apiVersion: v1
kind: ServiceAccount
metadata: {{name: {EDITOR}, namespace: {RUNNERS}}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {{name: {EDITOR}}}
rules:
- {{apiGroups: [''], resources: [configmaps], verbs: [get, create, patch, delete]}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {{name: {EDITOR}}}
roleRef: {{apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {EDITOR}}}
subjects:
- {{kind: ServiceAccount, name: {EDITOR}, namespace: {RUNNERS}}}
"
    ))
    .ok();
}
