//! How lists and maps are merged: what strategic merge and server-side apply need to know of a field.
//!
//! Of custom kinds their schema says it (`x-kubernetes-list-type`, `x-kubernetes-map-type`); of built-in kinds the
//! tables below do, after Kubernetes' API types.

use serde_json::Value;

/// How a list is owned and merged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum List {
    Atomic,
    Set,
    Map(Vec<String>),
}

/// A place in an object.
#[derive(Debug, Clone, Copy)]
pub enum Shape<'a> {
    /// A field of a built-in kind, and the field that it is in.
    Builtin {
        parent: &'a str,
        field: &'a str,
    },
    Schema(&'a Value),
    /// Nothing is known: maps are merged, lists replaced.
    Unknown,
}

/// Lists of built-in kinds that server-side apply merges by keys.
const MERGED: &[(&str, &[&str])] = &[
    ("containers", &["name"]),
    ("initContainers", &["name"]),
    ("ephemeralContainers", &["name"]),
    ("volumes", &["name"]),
    ("env", &["name"]),
    ("imagePullSecrets", &["name"]),
    ("secrets", &["name"]),
    ("resourceClaims", &["name"]),
    ("schedulingGates", &["name"]),
    ("volumeMounts", &["mountPath"]),
    ("volumeDevices", &["devicePath"]),
    ("hostAliases", &["ip"]),
    ("podIPs", &["ip"]),
    ("topologySpreadConstraints", &["topologyKey", "whenUnsatisfiable"]),
    ("conditions", &["type"]),
    ("ownerReferences", &["uid"]),
    ("webhooks", &["name"]),
    ("matchConditions", &["name"]),
];

/// Maps of built-in kinds that have one owner.
const ATOMIC: &[&str] = &[
    "selector",
    "nodeSelector",
    "configMapKeyRef",
    "secretKeyRef",
    "fieldRef",
    "resourceFieldRef",
    "namespaceSelector",
    "objectSelector",
    "labelSelector",
    "podSelector",
    "roleRef",
    "scaleTargetRef",
    "involvedObject",
];

impl<'a> Shape<'a> {
    /// The whole of a built-in object.
    pub const BUILTIN: Self = Self::Builtin { parent: "", field: "" };

    pub fn field(self, name: &'a str) -> Self {
        match self {
            Self::Builtin { field, .. } => Self::Builtin { parent: field, field: name },
            Self::Schema(schema) => schema["properties"]
                .get(name)
                .or_else(|| schema.get("additionalProperties").filter(|more| more.is_object()))
                .map_or(Self::Unknown, Self::Schema),
            Self::Unknown => Self::Unknown,
        }
    }

    /// What the items of a list are.
    pub fn items(self) -> Self {
        match self {
            Self::Schema(schema) => schema.get("items").map_or(Self::Unknown, Self::Schema),
            other => other,
        }
    }

    pub fn list(self) -> List {
        match self {
            Self::Builtin { field: "finalizers", .. } => List::Set,
            Self::Builtin { parent: "spec", field: "ports" } => keys(&["port", "protocol"]),
            Self::Builtin { parent, field: "ports" } if parent.ends_with("ontainers") => {
                keys(&["containerPort", "protocol"])
            }
            Self::Builtin { field, .. } => {
                MERGED.iter().find(|(list, _)| *list == field).map_or(List::Atomic, |(_, by)| keys(by))
            }
            Self::Schema(schema) => match schema["x-kubernetes-list-type"].as_str() {
                Some("set") => List::Set,
                Some("map") => {
                    let by = schema["x-kubernetes-list-map-keys"].as_array().into_iter().flatten();
                    List::Map(by.filter_map(Value::as_str).map(ToOwned::to_owned).collect())
                }
                _ => List::Atomic,
            },
            Self::Unknown => List::Atomic,
        }
    }

    /// A map that is one value.
    pub fn atomic_map(self) -> bool {
        match self {
            Self::Builtin { field, .. } => ATOMIC.contains(&field),
            Self::Schema(schema) => schema["x-kubernetes-map-type"] == "atomic",
            Self::Unknown => false,
        }
    }

    /// Whether `name` is one of the fields of a type, not a key of a map.
    pub fn declares(self, name: &str) -> bool {
        match self {
            Self::Builtin { field, .. } => !matches!(
                field,
                "labels"
                    | "annotations"
                    | "data"
                    | "stringData"
                    | "binaryData"
                    | "limits"
                    | "requests"
                    | "matchLabels"
                    | "hard"
            ),
            Self::Schema(schema) => schema["properties"].get(name).is_some(),
            Self::Unknown => false,
        }
    }

    /// The default of a key that an item of a list lacks.
    pub fn key_default(self, key: &str) -> Option<Value> {
        match self {
            Self::Schema(schema) => schema["properties"][key].get("default").cloned(),
            Self::Builtin { .. } if key == "protocol" => Some(Value::from("TCP")),
            _ => None,
        }
    }

    /// The key by which a strategic merge patch merges this list: the first of those of apply, with which Kubernetes'
    /// `patchMergeKey`s agree.
    pub fn patch_key(self) -> Option<&'static str> {
        match self {
            Self::Builtin { parent: "spec", field: "ports" } => Some("port"),
            Self::Builtin { parent, field: "ports" } if parent.ends_with("ontainers") => Some("containerPort"),
            Self::Builtin { field, .. } => {
                MERGED.iter().find(|(list, _)| *list == field).and_then(|(_, keys)| keys.first().copied())
            }
            _ => None,
        }
    }
}

fn keys(names: &[&str]) -> List {
    List::Map(names.iter().map(|name| (*name).to_owned()).collect())
}
