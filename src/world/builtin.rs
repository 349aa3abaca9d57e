//! The table of built-in kinds: those that Sluice, its charts and its users' plugins name.

use super::kinds::{Generation, Kind, Kinds};
use std::collections::BTreeMap;

/// group, versions, kind, plural, short names, marks. Marks: `n` namespaced, `s` a status, `c` a scale,
/// `g` a generation that content moves, `a` one that annotations move too, `u` no update without a resourceVersion,
/// `p` a PUT creates, `d` a deletion answers with the object, `r` a review, `e` stored as its twin of the core group.
type Row = (&'static str, &'static str, &'static str, &'static str, &'static str, &'static str);

const TABLE: &[Row] = &[
    ("", "v1", "ConfigMap", "configmaps", "cm", "n"),
    ("", "v1", "Endpoints", "endpoints", "ep", "np"),
    ("", "v1", "Event", "events", "ev", "np"),
    ("", "v1", "LimitRange", "limitranges", "limits", "np"),
    ("", "v1", "Namespace", "namespaces", "ns", "sd"),
    ("", "v1", "Node", "nodes", "no", "s"),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims", "pvc", "nsd"),
    ("", "v1", "Pod", "pods", "po", "nsgd"),
    ("", "v1", "ResourceQuota", "resourcequotas", "quota", "nsd"),
    ("", "v1", "Secret", "secrets", "", "n"),
    ("", "v1", "Service", "services", "svc", "nsdp"),
    ("", "v1", "ServiceAccount", "serviceaccounts", "sa", "nd"),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations", "", "gu"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingWebhookConfiguration",
        "validatingwebhookconfigurations",
        "",
        "gu",
    ),
    ("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", "", "gsu"),
    (
        "admissionregistration.k8s.io",
        "v1",
        "ValidatingAdmissionPolicyBinding",
        "validatingadmissionpolicybindings",
        "",
        "gu",
    ),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions", "crd crds", "gsu"),
    ("apps", "v1", "ControllerRevision", "controllerrevisions", "", "n"),
    ("apps", "v1", "DaemonSet", "daemonsets", "ds", "nsg"),
    ("apps", "v1", "Deployment", "deployments", "deploy", "nsca"),
    ("apps", "v1", "ReplicaSet", "replicasets", "rs", "nscg"),
    ("apps", "v1", "StatefulSet", "statefulsets", "sts", "nscg"),
    ("authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", "", "r"),
    ("authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", "", "r"),
    ("authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", "", "nr"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", "ns"),
    ("batch", "v1", "CronJob", "cronjobs", "cj", "nsg"),
    ("batch", "v1", "Job", "jobs", "", "nsg"),
    ("coordination.k8s.io", "v1", "Lease", "leases", "", "npu"),
    ("discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", "", "ng"),
    ("events.k8s.io", "v1", "Event", "events", "ev", "npe"),
    ("networking.k8s.io", "v1", "Ingress", "ingresses", "ing", "nsg"),
    ("networking.k8s.io", "v1", "IngressClass", "ingressclasses", "", "g"),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", "netpol", "ng"),
    ("policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", "nsgu"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", "", "p"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", "", "p"),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles", "", "np"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", "", "np"),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses", "pc", "g"),
    ("storage.k8s.io", "v1", "StorageClass", "storageclasses", "sc", "d"),
];

fn kind(row: &Row) -> Kind {
    let (group, versions, kind, plural, short_names, marks) = *row;
    let words = |text: &str| text.split_whitespace().map(ToOwned::to_owned).collect();
    let marked = |mark: char| marks.contains(mark);
    Kind {
        group: group.to_owned(),
        versions: words(versions),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
        singular: kind.to_lowercase(),
        short_names: words(short_names),
        namespaced: marked('n'),
        status: marked('s'),
        scale: marked('c'),
        generation: match (marked('g'), marked('a')) {
            (_, true) => Generation::ContentAndAnnotations,
            (true, false) => Generation::Content,
            (false, false) => Generation::None,
        },
        unconditional_update: !marked('u'),
        create_on_update: marked('p'),
        returns_deleted: marked('d'),
        review: marked('r'),
        schemas: BTreeMap::new(),
        custom: false,
        twin: marked('e'),
    }
}

/// Every built-in kind of the table.
pub fn kinds() -> Kinds {
    let mut kinds = Kinds::default();
    TABLE.iter().for_each(|row| kinds.put(kind(row)));
    kinds
}
