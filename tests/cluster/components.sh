# shellcheck shell=bash
# The cluster's components: their identities, their settings, and how each is run. Sourced by `cluster`, which
# knows when to run them; a component goes by the name of its program.
# shellcheck disable=SC2154 # settings.sh is sourced first

components=(containerd etcd kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy coredns)
pki=$home/pki
audit_log=$home/audit.log # one file: nothing may be rotated away before it is looked at

sign() { # FILE SUBJECT EXTENSIONS
  openssl ecparam -name prime256v1 -genkey -noout -out "$pki/$1.key"
  openssl req -new -key "$pki/$1.key" -subj "$2" |
    openssl x509 -req -CA "$pki/ca.crt" -CAkey "$pki/ca.key" -CAcreateserial -days 3650 \
      -extfile <(printf '%s' "$3") -out "$pki/$1.crt" 2>/dev/null
}
identity() { # NAME SUBJECT KUBECONFIG: a client certificate, and the kubeconfig that uses it
  sign "$1" "$2" extendedKeyUsage=clientAuth
  cat >"$3" <<YAML
apiVersion: v1
kind: Config
clusters: [{name: $name, cluster: {server: "https://$node_ip:6443", certificate-authority-data: $(base64 -w0 "$pki/ca.crt")}}]
users: [{name: $1, user: {client-certificate-data: $(base64 -w0 "$pki/$1.crt"), client-key-data: $(base64 -w0 "$pki/$1.key")}}]
contexts: [{name: $name, context: {cluster: $name, user: $1}}]
current-context: $name
YAML
}
certificates() { # each component is who it is in a real cluster, so that RBAC holds for it too
  mkdir -p "$pki"
  openssl ecparam -name prime256v1 -genkey -noout -out "$pki/ca.key"
  openssl req -x509 -new -key "$pki/ca.key" -subj /CN=cluster-ca -days 3650 -out "$pki/ca.crt"
  sign server /CN=kube-apiserver "subjectAltName=IP:127.0.0.1,IP:$node_ip,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:kubernetes.default.svc.cluster.local,DNS:node"
  openssl genrsa -out "$pki/sa.key" 2048 2>/dev/null
  identity admin /O=system:masters/CN=admin "$KUBECONFIG"
  identity kubelet /O=system:nodes/CN=system:node:node "$pki/kubelet.kubeconfig"
  identity controllers /CN=system:kube-controller-manager "$pki/controllers.kubeconfig"
  identity scheduler /CN=system:kube-scheduler "$pki/scheduler.kubeconfig"
  sign webhooks /CN=kube-apiserver-webhooks extendedKeyUsage=clientAuth
  identity proxy /CN=system:kube-proxy "$pki/proxy.kubeconfig"
}

webhook_clients() { # the API server shows Sluice a client certificate, as docs/operations.md has it; nobody need ask for it
  cat >"$pki/webhooks.kubeconfig" <<YAML
apiVersion: v1
kind: Config
users:
- name: sluice.sluice-system.svc
  user: {client-certificate: $pki/webhooks.crt, client-key: $pki/webhooks.key}
YAML
  cat >"$home/admission.yaml" <<YAML
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: $pki/webhooks.kubeconfig}
- name: MutatingAdmissionWebhook
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: WebhookAdmissionConfiguration, kubeConfigFile: $pki/webhooks.kubeconfig}
YAML
}
cni_plugins() {
  local dir
  for dir in /usr/lib/cni /opt/cni/bin /usr/libexec/cni; do
    [ ! -x "$dir/bridge" ] || { echo "$dir"; return; }
  done
}
settings() { # the files that the components read
  mkdir -p "$home/cni"
  webhook_clients
  cat >"$home/containerd.toml" <<TOML
version = 2
root = "$home/containerd"
state = "$home/containerd-state"
[grpc]
  address = "$home/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "cluster.local/pause:1"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true # a container may not lower its score where CAP_SYS_RESOURCE is missing
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "$home/containerd-state/runc" # else all clusters share a folder that none may remove
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "$(cni_plugins)"
    conf_dir = "$home/cni"
TOML
  cat >"$home/cni/10-pods.conflist" <<JSON
{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": "$home/cni/leases", "ranges": [[{"subnet": "$pods"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
JSON
  # No image can be pulled again and the disk is the developer's own, so neither its filling up nor an image's
  # age may make the kubelet remove images or evict pods.
  cat >"$home/kubelet.yaml" <<YAML
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
failSwapOn: false
failCgroupV1: false
cgroupDriver: cgroupfs
localStorageCapacityIsolation: false
imageGCHighThresholdPercent: 100
evictionHard: {memory.available: 50Mi, nodefs.available: 0%, nodefs.inodesFree: 0%, imagefs.available: 0%, imagefs.inodesFree: 0%}
podLogsDir: $home/pod-logs
cgroupRoot: /$namespace
containerRuntimeEndpoint: unix://$home/containerd.sock
resolvConf: ""
clusterDNS: [$node_ip]
clusterDomain: cluster.local
address: $node_ip
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $pki/ca.crt}}
authorization: {mode: AlwaysAllow}
shutdownGracePeriod: 0s
YAML
  audit_policy >"$home/audit.yaml"
  cat >"$home/Corefile" <<COREFILE
.:53 {
  errors
  kubernetes cluster.local {
    kubeconfig $KUBECONFIG $name
  }
}
COREFILE
}

audit_policy() { # what Sluice asks for, in full, and who changes sandboxes and plugins; CLUSTER_AUDIT=off for measurements
  printf 'apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [RequestReceived]\nrules:\n'
  [ "${CLUSTER_AUDIT:-on}" = off ] || cat <<YAML
- {level: RequestResponse, users: ["system:serviceaccount:sluice-system:sluice"]}
- {level: Metadata, verbs: [create, update, patch, delete, deletecollection], resources: [{group: sluice.dev}]}
YAML
  echo '- {level: None}'
}

spawn() { # PROGRAM ARGUMENT...: in the cluster's network, in the background, its log and pid kept
  nsenter --net="/run/netns/$namespace" setsid "$@" >>"$home/$1.log" 2>&1 </dev/null 9>&- &
  echo $! >"$home/$1.pid" # nsenter and setsid replace themselves, so this is the program's own
}
launch() { # COMPONENT
  case $1 in
    containerd) spawn containerd -c "$home/containerd.toml" ;;
    etcd)
      spawn etcd --data-dir "$home/etcd" --log-level warn --unsafe-no-fsync --listen-client-urls http://127.0.0.1:2379 \
        --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
      ;;
    kube-apiserver)
      spawn kube-apiserver --etcd-servers http://127.0.0.1:2379 --advertise-address "$node_ip" --allow-privileged \
        --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction --admission-control-config-file "$home/admission.yaml" \
        --tls-cert-file "$pki/server.crt" --tls-private-key-file "$pki/server.key" --client-ca-file "$pki/ca.crt" \
        --kubelet-client-certificate "$pki/admin.crt" --kubelet-client-key "$pki/admin.key" --kubelet-preferred-address-types InternalIP \
        --service-account-issuer https://kubernetes.default.svc.cluster.local --service-account-key-file "$pki/sa.key" \
        --service-account-signing-key-file "$pki/sa.key" --service-cluster-ip-range "$services" \
        --audit-policy-file "$home/audit.yaml" --audit-log-path "$audit_log" --audit-log-maxsize 20000 \
        --audit-log-truncate-enabled --audit-log-truncate-max-event-size 65536
      ;;
    kube-controller-manager)
      spawn kube-controller-manager --kubeconfig "$pki/controllers.kubeconfig" --leader-elect=false --use-service-account-credentials \
        --root-ca-file "$pki/ca.crt" --service-account-private-key-file "$pki/sa.key" \
        --cluster-signing-cert-file "$pki/ca.crt" --cluster-signing-key-file "$pki/ca.key"
      ;;
    kube-scheduler) spawn kube-scheduler --kubeconfig "$pki/scheduler.kubeconfig" --leader-elect=false ;;
    kubelet)
      spawn kubelet --config "$home/kubelet.yaml" --kubeconfig "$pki/kubelet.kubeconfig" --hostname-override node \
        --node-ip "$node_ip" --root-dir "$home/kubelet" --cert-dir "$pki/kubelet"
      ;;
    kube-proxy)
      spawn kube-proxy --kubeconfig "$pki/proxy.kubeconfig" --proxy-mode nftables --hostname-override node \
        --conntrack-max-per-core 0 --conntrack-tcp-timeout-established 0s --conntrack-tcp-timeout-close-wait 0s
      ;;
    coredns) spawn coredns -conf "$home/Corefile" ;;
    *) fail "there is no component '$1'" "they are: ${components[*]}" ;;
  esac
}
