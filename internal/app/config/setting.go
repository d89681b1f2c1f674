package config

import (
	"strings"
)

// Key names one setting as in the file: "section.key", or "key" for those
// above the first section.
type Key string

// The keys. A variable is SANDPIT_ and the key in upper case with an underscore
// for the dot: SANDPIT_SANDBOX_IMAGE.
const (
	KeyURL            Key = "url"
	KeyAPIKey         Key = "api_key"
	KeyCA             Key = "ca"
	KeyProvider       Key = "provider"
	KeyEngine         Key = "engine"
	KeyStateDir       Key = "state_dir"
	KeyCacheDir       Key = "cache_dir"
	KeyRuntimeDir     Key = "runtime_dir"
	KeyTempDir        Key = "temp_dir"
	KeyUseSandbox     Key = "sandbox.use_sandbox"
	KeyImage          Key = "sandbox.image"
	KeyWorkDir        Key = "sandbox.work_dir"
	KeyMemoryLimit    Key = "sandbox.memory_limit"
	KeyCPULimit       Key = "sandbox.cpu_limit"
	KeyDiskLimit      Key = "sandbox.disk_limit"
	KeyPIDsLimit      Key = "sandbox.pids_limit"
	KeyTimeout        Key = "sandbox.timeout"
	KeyNetworkEnabled Key = "sandbox.network_enabled"
	KeyCommandScreen  Key = "sandbox.command_screen"
	KeyScreenDeny     Key = "sandbox.screen_deny"
	KeyScreenAsk      Key = "sandbox.screen_ask"
	KeyScreenWarn     Key = "sandbox.screen_warn"
	KeyScreenAllow    Key = "sandbox.screen_allow"
	KeyConfineFiles   Key = "sandbox.confine_files"
	KeyImagePull      Key = "image.pull"
	KeyImageMirrors   Key = "image.mirrors"
	KeyImageInsecure  Key = "image.insecure"
	KeyRegistries     Key = "image.registries"
	KeyImageAuth      Key = "image.auth"
	KeyDockerConfig   Key = "image.docker_config"
	KeyCacheSize      Key = "image.cache_size"
	KeyOwnerCacheSize Key = "image.owner_cache_size"
	KeyMaxPulls       Key = "image.max_pulls"
	KeyPullTimeout    Key = "image.pull_timeout"
	KeyPrePull        Key = "image.pre_pull"

	KeyNetworkForbid         Key = "network.forbid"
	KeyNetworkAllow          Key = "network.allow"
	KeyNetworkDeny           Key = "network.deny"
	KeyCeilingAllow          Key = "network.ceiling_allow"
	KeyCeilingDeny           Key = "network.ceiling_deny"
	KeyCeilingReceive        Key = "network.ceiling_receive"
	KeyCeilingSend           Key = "network.ceiling_send"
	KeyCeilingConnections    Key = "network.ceiling_connections"
	KeyCeilingConnectionRate Key = "network.ceiling_connection_rate"

	KeyE2BCloudKey        Key = "e2b_cloud.api_key"
	KeyE2BCloudDomain     Key = "e2b_cloud.domain"
	KeyE2BCloudAPIURL     Key = "e2b_cloud.api_url"
	KeyE2BCloudSandboxURL Key = "e2b_cloud.sandbox_url"
	KeyE2BCloudTemplate   Key = "e2b_cloud.template"
	KeyE2BCloudTimeout    Key = "e2b_cloud.timeout"
	KeyE2BCloudGuest      Key = "e2b_cloud.guest"

	KeyDockerHost         Key = "docker.host"
	KeyDockerContext      Key = "docker.context"
	KeyDockerTLSVerify    Key = "docker.tls_verify"
	KeyDockerCertPath     Key = "docker.cert_path"
	KeyDockerImage        Key = "docker.image"
	KeyDockerNetwork      Key = "docker.network"
	KeyDockerRuntime      Key = "docker.runtime"
	KeyDockerUserns       Key = "docker.userns"
	KeyDockerUser         Key = "docker.user"
	KeyDockerCapabilities Key = "docker.capabilities"
	KeyDockerReadOnlyRoot Key = "docker.read_only_root"
	KeyDockerTmpfsSize    Key = "docker.tmpfs_size"
	KeyDockerShmSize      Key = "docker.shm_size"
	KeyDockerOpenFiles    Key = "docker.open_files"
	KeyDockerStopGrace    Key = "docker.stop_grace"
	KeyDockerCallTimeout  Key = "docker.call_timeout"
	KeyDockerPatience     Key = "docker.patience"

	KeyProviderSandboxes     Key = "providers.max_sandboxes"
	KeyProviderHours         Key = "providers.max_sandbox_hours"
	KeyProviderCreateTimeout Key = "providers.create_timeout"
	KeyProviderCallTimeout   Key = "providers.call_timeout"
	KeyProviderDelete        Key = "providers.delete_stopped_after"

	KeyListen          Key = "server.listen"
	KeySocket          Key = "server.socket"
	KeyNames           Key = "server.names"
	KeyTLSCert         Key = "server.tls_cert"
	KeyTLSKey          Key = "server.tls_key"
	KeyTLS             Key = "server.tls"
	KeyACMEEmail       Key = "server.acme_email"
	KeyACMEDirectory   Key = "server.acme_directory"
	KeyACMECA          Key = "server.acme_ca"
	KeyKeyless         Key = "server.keyless"
	KeyMaxBody         Key = "server.max_body"
	KeyMaxConnections  Key = "server.max_connections"
	KeyMinFreeDisk     Key = "server.min_free_disk"
	KeyRate            Key = "server.rate"
	KeyBurst           Key = "server.burst"
	KeyDrain           Key = "server.drain"
	KeyMountRoots      Key = "server.mount_roots"
	KeyTemporaryMounts Key = "server.temporary_mounts"
	KeyMCPSessions     Key = "server.mcp_max_sessions"
	KeyMCPIdleTimeout  Key = "server.mcp_idle_timeout"
	KeyMCPTools        Key = "server.mcp_tools"
	KeyMCPConfig       Key = "server.mcp_config"
	KeySSHListen       Key = "ssh.listen"
	KeySSHConnections  Key = "ssh.max_connections"
	KeySSHIdleTimeout  Key = "ssh.idle_timeout"
	KeyPreviewDomain   Key = "preview.domain"
	KeyPreviewListen   Key = "preview.listen"
	KeyPreviewURL      Key = "preview.url"
	KeyPreviewFrames   Key = "preview.frame_ancestors"
	KeyE2BTemplates    Key = "e2b.templates"
	KeyE2BInternet     Key = "e2b.allow_internet_access"
	KeyE2BPublic       Key = "e2b.allow_public_traffic"
	KeyMaxSandboxes    Key = "manager.max_sandboxes"
	KeyIdleTimeout     Key = "manager.idle_timeout"
	KeyIdleAction      Key = "manager.idle_action"
	KeyCleanupInterval Key = "manager.cleanup_interval"
	KeyCreateTimeout   Key = "manager.create_timeout"
	KeyCallTimeout     Key = "manager.call_timeout"
	KeyParallel        Key = "manager.parallel"
	KeyLifetime        Key = "manager.lifetime"
	KeyRemember        Key = "manager.remember"
	KeyUsageInterval   Key = "usage.interval"
	KeyUsageMemory     Key = "usage.memory"
	KeyUsageCPU        Key = "usage.cpu"
	KeyUsageDisk       Key = "usage.disk"
	KeyUsagePIDs       Key = "usage.pids"
	KeyUsageAction     Key = "usage.action"
	KeyUsageSustained  Key = "usage.sustained"
	KeyMaxVolumes      Key = "manager.max_volumes"
	KeyVolumeBytes     Key = "manager.max_volume_bytes"
	KeyMaxSaved        Key = "manager.max_saved"
	KeySavedBytes      Key = "manager.max_saved_bytes"
	KeyMaxSnapshots    Key = "manager.max_snapshots"
	KeySnapshotBytes   Key = "manager.max_snapshot_bytes"
	KeyCheckpointBytes Key = "manager.max_checkpoint_bytes"
	KeyCheckpointAge   Key = "manager.max_checkpoint_age"
	KeyMaxTemplates    Key = "manager.max_templates"
	KeyTemplateBytes   Key = "manager.max_template_bytes"
	KeyMaxBuilds       Key = "manager.max_builds"
	KeyBuildTimeout    Key = "manager.build_timeout"
	KeyDeleteOnStop    Key = "manager.delete_on_stop"
	KeyOwnerQuota      Key = "manager.owner_quota"
	KeyQuotas          Key = "manager.quotas"
	KeyLabelQuotas     Key = "manager.label_quotas"
	KeyQueueProvider   Key = "queue.provider"
	KeyRedisURL        Key = "queue.redis_url"
	KeyRedisCA         Key = "queue.redis_tls_ca_path"
	KeyQueueName       Key = "queue.queue_name"
	KeyArchiveDir      Key = "archive.dir"
	KeyArchiveS3       Key = "archive.s3"
	KeyArchiveRegion   Key = "archive.s3_region"
	KeyArchiveCA       Key = "archive.s3_ca"
	KeyArchiveAccess   Key = "archive.s3_access_key"
	KeyArchiveSecret   Key = "archive.s3_secret_key" //nolint:gosec // the name of a setting, not its value
	KeyAuditMaxAge     Key = "audit.max_age"
	KeyAuditMaxSize    Key = "audit.max_size"
	KeyAuditExport     Key = "audit.export_dir"
	KeyAuditExportSize Key = "audit.max_export_size"
	KeyMaxRetries      Key = "queue.max_retries"
	KeyPool            Key = "pool"
	KeyLogLevel        Key = "log.level"
	KeyLogFormat       Key = "log.format"
	KeyMetrics         Key = "telemetry.metrics"
	KeyMetricsListen   Key = "telemetry.metrics_listen"
)

// The keys of what owners and addresses may have of the server.
const (
	KeyAddressConnections  Key = "server.max_connections_per_address"
	KeyOwnerConnections    Key = "server.max_connections_per_owner"
	KeyMaxRequests         Key = "server.max_requests"
	KeyOwnerRequests       Key = "server.max_requests_per_owner"
	KeyServerMemory        Key = "server.memory"
	KeyOwnerMemory         Key = "server.memory_per_owner"
	KeyTrustedProxies      Key = "server.trusted_proxies"
	KeySSHOwnerConnections Key = "ssh.max_connections_per_owner"
	KeyMetricsToken        Key = "telemetry.metrics_token"
	KeyMetricsSandboxes    Key = "telemetry.metrics_sandboxes"
	KeyUploadBytes         Key = "manager.max_upload_bytes"
	KeyUploadTotal         Key = "manager.max_upload_bytes_total"
)

// Variable returns the name of the environment variable that sets the key.
func (k Key) Variable() string {
	return "SANDPIT_" + strings.ToUpper(strings.ReplaceAll(string(k), ".", "_"))
}

// splitKey returns the section ("" for none) and the name within it.
func (k Key) splitKey() (section, name string) {
	section, name, found := strings.Cut(string(k), ".")
	if !found {
		return "", section
	}
	return section, name
}

// setting says how a value gets into the Config, and out of it. The value is what
// the TOML decoder makes of it, or a word when it comes from a variable or a flag.
type setting struct {
	key   Key
	about string // one sentence for people
	usual string // the default in words, if it is not a fixed value
	also  []alias
	set   func(c *Config, value any) error
	show  func(c *Config) string
}

// word is a value in text form that no TOML type is known for yet.
type word string

// defineSetting makes a setting of a field and the function that reads its values.
func defineSetting[T any](key Key, field func(*Config) *T, set func(*T, any) error, about string) setting {
	return setting{
		key: key, about: about,
		set:  func(c *Config, v any) error { return set(field(c), v) },
		show: func(c *Config) string { return renderValue(*field(c)) },
	}
}

// describedBy says in words what the default is.
func (s setting) describedBy(usual string) setting { s.usual = usual; return s }

// orVariable names a variable of another program that is read when sandpit's is not set. read
// converts its value; nil takes it unchanged.
func (s setting) orVariable(variable string, read func(string) (word, bool)) setting {
	s.also = append(s.also, alias{name: variable, read: read})
	return s
}

func findSetting(key Key) (setting, bool) {
	for _, s := range allSettings() {
		if s.key == key {
			return s, true
		}
	}
	return setting{}, false
}

// namesIn returns the names of the settings in a section, "" being none.
func namesIn(section string) []string {
	var names []string
	for _, s := range allSettings() {
		if sec, name := s.key.splitKey(); sec == section {
			names = append(names, name)
		}
	}
	return names
}
