package config

import (
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// bothSizes is the example of sizes in error texts.
const bothSizes = `"512m" or "2g"`

// allSettings returns every setting. It returns a new list in each call, so that callers share
// nothing.
func allSettings() []setting {
	var list []setting
	for _, part := range [][]setting{
		programSettings(), sandboxSettings(), networkSettings(), imageSettings(), dockerSettings(), daytonaSettings(), e2bCloudSettings(), providersSettings(), serverSettings(), tlsSettings(), previewSettings(),
		e2bSettings(), sshSettings(), managerSettings(), usageSettings(), queueSettings(), archiveSettings(), auditSettings(), outputSettings(), llmSettings(),
	} {
		list = append(list, part...)
	}
	return list
}

func programSettings() []setting {
	return []setting{
		defineSetting(KeyURL, func(c *Config) *string { return &c.URL }, setURL,
			"The address of the server for clients: http://, https:// or unix:// and a path.").
			describedBy("the socket of this user's own server").orVariable("AGENT_INFRA_URL", nil),
		defineSetting(KeyAPIKey, func(c *Config) *Secret { return &c.APIKey }, setKey,
			"The API key that clients send to the server. Set it as a variable rather than in a file."),
		defineSetting(KeyCA, func(c *Config) *string { return &c.CA }, setPath,
			"For clients: a file of authorities that they trust for the server's certificate.").describedBy("the authorities that the machine trusts"),
		defineSetting(KeyProvider, func(c *Config) *[]string { return &c.ProviderList }, setProviders,
			"The provider of sandboxes whose requests name none. With several, as in `[\"gvisor\", \"e2b\"]` or `gvisor,e2b`, the next one creates the sandbox if one is full, cannot be reached or cannot do it; see [providers.md](providers.md).").
			orVariable("SANDBOX_PROVIDER", nil),
		defineSetting(KeyEngine, func(c *Config) *string { return &c.Engine }, setPath,
			"A static sandpit binary to use as the engine.").describedBy("this program itself"),
		defineSetting(KeyStateDir, func(c *Config) *string { return &c.StateDir }, setPath,
			"The directory of data that must survive a restart.").describedBy("`$XDG_STATE_HOME/sandpit`; for root `/var/lib/sandpit`"),
		defineSetting(KeyCacheDir, func(c *Config) *string { return &c.CacheDir }, setPath,
			"The directory of data that can be fetched again: images.").describedBy("`$XDG_CACHE_HOME/sandpit`; for root `/var/cache/sandpit`"),
		defineSetting(KeyRuntimeDir, func(c *Config) *string { return &c.RuntimeDir }, setPath,
			"The directory of sockets and locks.").describedBy("`$XDG_RUNTIME_DIR/sandpit`; for root `/run/sandpit`; `run` in `state_dir` when that was set"),
		defineSetting(KeyTempDir, func(c *Config) *string { return &c.TempDir }, setPath,
			"The directory in which temporary directories of sandboxes are created.").describedBy("`$TMPDIR`, else `/tmp`"),
		defineSetting(KeyPool, func(c *Config) *[]Pool { return &c.Pools }, setPools,
			"Sandboxes created in advance, as `[[pool]]` entries (see below). The variable has images and sizes: `host=4 python:3.12-slim=2`."),
	}
}

func sandboxSettings() []setting {
	return []setting{
		defineSetting(KeyUseSandbox, func(c *Config) *bool { return &c.Sandbox.UseSandbox }, setBool,
			"Accepted for files of OpenManus: tools of agents always run in a sandbox. `false` is reported (`sandpit doctor`, the log of `serve` and `mcp`) and has no effect; `sandpit agent` refuses it."),
		defineSetting(KeyImage, func(c *Config) *sandpit.Image { return &c.Sandbox.Image }, setImage,
			"The image of sandboxes whose requests name none."),
		defineSetting(KeyWorkDir, func(c *Config) *string { return &c.Sandbox.WorkDir }, setWorkDir,
			"The directory in which commands start."),
		defineSetting(KeyMemoryLimit, func(c *Config) *int64 { return &c.Sandbox.MemoryLimit }, sizeOf(minMemory, "32m", bothSizes),
			"Memory, swap included. At least 32m."),
		defineSetting(KeyCPULimit, func(c *Config) *float64 { return &c.Sandbox.CPULimit }, setCPU,
			"Processors; 0.5 is half of one. 0.01 to 1024."),
		defineSetting(KeyDiskLimit, func(c *Config) *int64 { return &c.Sandbox.DiskLimit }, sizeOf(minDisk, "1m", bothSizes),
			"The space for files that a sandbox writes. At least 1m; files that are stored in memory use at most half of the memory."),
		defineSetting(KeyPIDsLimit, func(c *Config) *int { return &c.Sandbox.PIDsLimit }, numberOf("processes", 1, 1<<20),
			"Processes and threads. 1 to 1048576."),
		defineSetting(KeyTimeout, func(c *Config) *time.Duration { return &c.Sandbox.Timeout }, timeOf("300"),
			"The time limit of a command whose request has none: see [Time limits of commands](#time-limits-of-commands)."),
		defineSetting(KeyNetworkEnabled, func(c *Config) *bool { return &c.Sandbox.NetworkEnabled }, setBool,
			"Whether a sandbox reaches the network if its request does not say."),
		defineSetting(KeyCommandScreen, func(c *Config) *string { return &c.Sandbox.CommandScreen },
			oneOf(ScreenOff, ScreenWarn, ScreenAsk, ScreenDeny),
			"What happens to a command that looks dangerous, however it is started: off, warn, ask (only in `sandpit run`; elsewhere the same as deny) or deny."),
		defineSetting(KeyScreenDeny, func(c *Config) *[]string { return &c.Sandbox.ScreenDenied }, setScreenRules,
			"Commands that the screen refuses, before its own rules: a program's name, then words of which each must match an argument; `*` and `?` match any text and any character. "+
				"For example `[\"git push *force*\", \"nc*\"]`. The variable has commas between rules."),
		defineSetting(KeyScreenAsk, func(c *Config) *[]string { return &c.Sandbox.ScreenAsked }, setScreenRules,
			"Commands that the screen asks about."),
		defineSetting(KeyScreenWarn, func(c *Config) *[]string { return &c.Sandbox.ScreenWarned }, setScreenRules,
			"Commands that the screen warns of."),
		defineSetting(KeyScreenAllow, func(c *Config) *[]string { return &c.Sandbox.ScreenAllowed }, setScreenRules,
			"Commands to which the screen's own rules do not apply. The commands that they run in turn are checked."),
		defineSetting(KeyConfineFiles, func(c *Config) *bool { return &c.Sandbox.ConfineFiles }, setBool,
			"Whether calls that read or change files are refused outside of the sandbox's working directory and mounts, symbolic links followed: "+
				"those of the API, tools, E2B, AIO, SFTP and `sandpit cp`. Commands are not confined, and reach all files of the sandbox."),
	}
}

func imageSettings() []setting {
	return []setting{
		defineSetting(KeyImagePull, func(c *Config) *string { return &c.Image.Pull }, oneOf("missing", "always", "never"),
			"When images are fetched from a registry: missing, always or never."),
		defineSetting(KeyImageMirrors, func(c *Config) *map[string][]string { return &c.Image.Mirrors }, setMirrors,
			"For a registry, the mirrors that are tried first. The variable: `docker.io=one,two ghcr.io=three`."),
		defineSetting(KeyImageInsecure, func(c *Config) *[]string { return &c.Image.Insecure }, setHosts,
			"Registries that may be used without encryption."),
		defineSetting(KeyRegistries, func(c *Config) *[]string { return &c.Image.Registries }, setRegistries,
			"Registries at addresses that are not public, or ranges of such addresses, that ordinary clients of a server may use. Administrators may use every registry."),
		defineSetting(KeyImageAuth, func(c *Config) *map[string]Login { return &c.Image.Auth }, setAuth,
			"Logins to registries, in addition to those of `docker login`: `registry=user:password`."),
		defineSetting(KeyDockerConfig, func(c *Config) *string { return &c.Image.DockerConfig }, setPath,
			"The directory of Docker's config.json.").describedBy("`$DOCKER_CONFIG`, else `~/.docker`"),
		defineSetting(KeyCacheSize, func(c *Config) *int64 { return &c.Image.CacheSize }, sizeOf(minCache, "64m", `"20g"`),
			"The maximum size of cached images; the least recently used ones are removed first. On a server, templates and imported images do not count, "+
				"and an image that does not fit is refused. At least 64m."),
		defineSetting(KeyOwnerCacheSize, func(c *Config) *int64 { return &c.Image.OwnerCacheSize }, sizeOf(minCache, "64m", `"5g"`),
			"On a server, each owner's share of `cache_size`: images that the owner has fetched, and steps of its builds. At least 64m.").describedBy("half of `image.cache_size`"),
		defineSetting(KeyMaxPulls, func(c *Config) *int { return &c.Image.MaxPulls }, numberOf("images", 1, 1000),
			"The number of images that a server fetches at the same time, at most half of them for one owner. 1 to 1000."),
		defineSetting(KeyPullTimeout, func(c *Config) *time.Duration { return &c.Image.PullTimeout }, timeOf("1800"),
			"The time limit for fetching one image."),
		defineSetting(KeyPrePull, func(c *Config) *[]string { return &c.Image.PrePull }, setImages,
			"Images that a server fetches when it starts, for its default provider. In the variable they are separated by commas or spaces."),
	}
}

func serverSettings() []setting {
	return []setting{
		defineSetting(KeyListen, func(c *Config) *string { return &c.Server.Listen }, setListen,
			"The TCP address of the server, or none. On an address other than loopback, the server starts only if an API key exists."),
		defineSetting(KeySocket, func(c *Config) *string { return &c.Server.Socket }, setSocket,
			"The Unix socket of the server, or none. A client that can open it is an administrator and needs no key; only the same user can.").
			describedBy("`sandpit.sock` in `runtime_dir`"),
		defineSetting(KeyNames, func(c *Config) *[]string { return &c.Server.Names }, setNames,
			"Host names by which clients call the server. A request for another name is refused, so that web pages cannot reach it by names of their own."),
		defineSetting(KeyKeyless, func(c *Config) *bool { return &c.Server.Keyless }, setBool,
			"Whether programs of the server's own user, and of root, may use a loopback address without a key, as the administrator `local`.").describedBy("`true`; for root `false`"),
		defineSetting(KeyMaxBody, func(c *Config) *int64 { return &c.Server.MaxBody }, sizeOf(4<<10, "4k", `"4m"`),
			"The largest request body, except files. At least 4k."),
		defineSetting(KeyMaxConnections, func(c *Config) *int { return &c.Server.MaxConnections }, numberOf("connections", 1, 1<<20),
			"The number of simultaneous connections. 1 to 1048576; at most half of the files that the server may have open."),
		defineSetting(KeyMinFreeDisk, func(c *Config) *int64 { return &c.Server.MinFreeDisk }, sizeOf(0, "0", `"1g"`),
			"The space that the server leaves free on a disk, but at most a twentieth of the disk. Requests that would use it are refused; deleting keeps working."),
		defineSetting(KeyAddressConnections, func(c *Config) *int { return &c.Server.MaxConnectionsPerAddress }, numberOf("connections", 0, 1<<20),
			"The number of simultaneous connections from one address (IPv6: one /64); 0 is the default. Trusted proxies are exempt.").describedBy("half of `max_connections`"),
		defineSetting(KeyOwnerConnections, func(c *Config) *int { return &c.Server.MaxConnectionsPerOwner }, numberOf("connections", 0, 1<<20),
			"The number of simultaneous connections of one owner; 0 is the default.").describedBy("half of `max_connections`"),
		defineSetting(KeyMaxRequests, func(c *Config) *int { return &c.Server.MaxRequests }, numberOf("requests", 0, 1e6),
			"The number of concurrent requests, streams included, and the same number again for previews; 0 is the default.").
			describedBy("one for each 512 KiB of memory that the server may use, from 256 to 10000"),
		defineSetting(KeyOwnerRequests, func(c *Config) *int { return &c.Server.MaxRequestsPerOwner }, numberOf("requests", 0, 1e6),
			"The number of concurrent requests of one owner; 0 is the default.").describedBy("a quarter of `max_requests`"),
		defineSetting(KeyServerMemory, func(c *Config) *int64 { return &c.Server.Memory }, sizeOf(1<<20, "1m", bothSizes),
			"The memory for requests and sessions of clients: bodies, output of commands, unread responses. At least 1m.").
			describedBy("a quarter of the memory that the server may use, up to `1g`"),
		defineSetting(KeyOwnerMemory, func(c *Config) *int64 { return &c.Server.MemoryPerOwner }, sizeOf(1<<20, "1m", bothSizes),
			"Each owner's share of that memory. At least 1m.").describedBy("a quarter of `memory`"),
		defineSetting(KeyTrustedProxies, func(c *Config) *[]string { return &c.Server.TrustedProxies }, setProxies,
			"Addresses or ranges of trusted reverse proxies: attempts with wrong keys count for the address in their X-Forwarded-For."),
		defineSetting(KeyRate, func(c *Config) *int { return &c.Server.Rate }, numberOf("requests", 1, 1e6),
			"The number of requests per second of each key, on average. 1 to 1000000."),
		defineSetting(KeyBurst, func(c *Config) *int { return &c.Server.Burst }, numberOf("requests", 1, 1e6),
			"The number of requests of each key in a burst. 1 to 1000000."),
		defineSetting(KeyDrain, func(c *Config) *time.Duration { return &c.Server.Drain }, timeOf("30"),
			"The time for requests to finish when the server ends."),
		defineSetting(KeyMountRoots, func(c *Config) *[]string { return &c.Server.MountRoots }, setPaths,
			"Directories of this machine that ordinary clients may mount in sandboxes. In the variable they are separated by colons."),
		defineSetting(KeyTemporaryMounts, func(c *Config) *bool { return &c.Server.TemporaryMounts }, setBool,
			"Whether ordinary clients may mount temporary directories of this machine in their sandboxes. The size of these directories is not limited."),
		defineSetting(KeyMCPSessions, func(c *Config) *int { return &c.Server.MCPSessions }, numberOf("sessions", 1, 1e5),
			"The number of agent sessions of each owner at `/mcp`, each with a sandbox of its own. 1 to 100000."),
		defineSetting(KeyMCPIdleTimeout, func(c *Config) *time.Duration { return &c.Server.MCPIdleTimeout }, timeOf("1800"),
			"The time without a request after which such a session ends and its sandbox is deleted."),
		defineSetting(KeyMCPTools, func(c *Config) *[]string { return &c.Server.MCPTools }, setTools,
			"The tools that agents get if their client does not choose, also with `sandpit mcp`: `default`, `all`, categories or names of tools (`sandpit tool ls`).").
			describedBy("the default set"),
		defineSetting(KeyMCPConfig, func(c *Config) *string { return &c.Server.MCPConfig }, setPath,
			"A file of MCP servers, in the form of `sandpit mcp --mcp-config`, whose tools sessions at `/mcp` and of AIO can call. They run in each session's sandbox, "+
				"where the session's programs can read their variables and headers: give them no secret that clients must not know. It is read when the server starts.").
			describedBy("none"),
	}
}

func tlsSettings() []setting {
	return []setting{
		defineSetting(KeyTLS, func(c *Config) *string { return &c.Server.TLS }, oneOf(TLSOff, TLSFiles, TLSLocal, TLSAuto),
			"The server's certificates: off for none, files for tls_cert and tls_key, local for an authority of the server's own, "+
				"auto for Let's Encrypt or another authority that supports ACME.").describedBy("`files` with `tls_cert`, else `off`"),
		defineSetting(KeyTLSCert, func(c *Config) *string { return &c.Server.TLSCert }, setPath,
			"The certificate of the server in PEM form."),
		defineSetting(KeyTLSKey, func(c *Config) *string { return &c.Server.TLSKey }, setPath,
			"The private key of `tls_cert`."),
		defineSetting(KeyACMEEmail, func(c *Config) *string { return &c.Server.ACMEEmail }, setEmail,
			"The address to which the authority of `tls = \"auto\"` may send mail."),
		defineSetting(KeyACMEDirectory, func(c *Config) *string { return &c.Server.ACMEDirectory }, setDirectory,
			"The ACME directory of that authority.").describedBy("Let's Encrypt"),
		defineSetting(KeyACMECA, func(c *Config) *string { return &c.Server.ACMECA }, setPath,
			"A file of authorities that are trusted for the certificate of `acme_directory`.").describedBy("the authorities that the machine trusts"),
	}
}

func sshSettings() []setting {
	return []setting{
		defineSetting(KeySSHListen, func(c *Config) *string { return &c.SSH.Listen }, setListen,
			"The TCP address at which the server accepts SSH connections to sandboxes, such as 127.0.0.1:2222, or none."),
		defineSetting(KeySSHConnections, func(c *Config) *int { return &c.SSH.MaxConnections }, numberOf("connections", 1, 1e4),
			"The number of simultaneous SSH connections. 1 to 10000."),
		defineSetting(KeySSHOwnerConnections, func(c *Config) *int { return &c.SSH.MaxConnectionsPerOwner }, numberOf("connections", 0, 1e4),
			"The number of simultaneous SSH connections of one owner; 0 is the default.").describedBy("half of `max_connections`"),
		defineSetting(KeySSHIdleTimeout, func(c *Config) *time.Duration { return &c.SSH.IdleTimeout }, timeOf("3600"),
			"The time without traffic after which an SSH connection is closed. Until then its sandbox is in use."),
	}
}

func managerSettings() []setting {
	return []setting{
		defineSetting(KeyMaxSandboxes, func(c *Config) *int { return &c.Manager.MaxSandboxes }, numberOf("sandboxes", 1, 1e6),
			"The number of sandboxes that may exist, not counting stopped, suspended and archived ones. 1 to 1000000."),
		defineSetting(KeyIdleTimeout, func(c *Config) *time.Duration { return &c.Manager.IdleTimeout }, timeOf("3600"),
			"The time without use after which `idle_action` happens, for sandboxes whose requests do not say."),
		defineSetting(KeyIdleAction, func(c *Config) *string { return &c.Manager.IdleAction }, oneOf("suspend", "stop", "pause", "kill"),
			"What happens to an idle sandbox whose request does not say: it is suspended (paused on disk), stopped or paused, and resumes when it is used, or it is deleted with its files (kill). A sandbox that cannot be suspended is stopped or paused."),
		defineSetting(KeyCleanupInterval, func(c *Config) *time.Duration { return &c.Manager.CleanupInterval }, timeOf("300"),
			"The longest time between two sweeps, in which the server performs overdue actions."),
		defineSetting(KeyCreateTimeout, func(c *Config) *time.Duration { return &c.Manager.CreateTimeout }, timeOf("120"),
			"The time limit for creating a sandbox, without the time to fetch its image and to wait for a slot."),
		defineSetting(KeyCallTimeout, func(c *Config) *time.Duration { return &c.Manager.CallTimeout }, timeOf("30"),
			"The time limit for every other call of a provider."),
		defineSetting(KeyParallel, func(c *Config) *int { return &c.Manager.Parallel }, numberOf("sandboxes", 1, 1000),
			"The number of sandboxes that are created or started at the same time, at most half (rounded up) for one owner. Further requests wait. 1 to 1000."),
		defineSetting(KeyLifetime, func(c *Config) *time.Duration { return &c.Manager.Lifetime }, setLifetime,
			"The lifetime of a sandbox whose request does not say; 0 is unlimited."),
		defineSetting(KeyRemember, func(c *Config) *time.Duration { return &c.Manager.Remember }, timeOf("3600"),
			"The time for which the server remembers a deleted sandbox and the reason for its end."),
		defineSetting(KeyMaxVolumes, func(c *Config) *int { return &c.Manager.MaxVolumes }, numberOf("volumes", 0, 1e6),
			"The number of volumes of each owner; 0 forbids them."),
		defineSetting(KeyVolumeBytes, func(c *Config) *int64 { return &c.Manager.MaxVolumeBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"The total size of the volumes of each owner. Beyond it, the server pauses the owner's sandboxes that can write them."),
		defineSetting(KeyMaxSaved, func(c *Config) *int { return &c.Manager.MaxSaved }, numberOf("sandboxes", 0, 1e6),
			"The number of stopped, suspended (paused on disk) and archived sandboxes of each owner; 0 forbids them."),
		defineSetting(KeySavedBytes, func(c *Config) *int64 { return &c.Manager.MaxSavedBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"The disk space of each owner's stopped, suspended and archived sandboxes and checkpoints together."),
		defineSetting(KeyMaxSnapshots, func(c *Config) *int { return &c.Manager.MaxSnapshots }, numberOf("snapshots", 0, 1e6),
			"The number of snapshots of each owner; 0 forbids them."),
		defineSetting(KeySnapshotBytes, func(c *Config) *int64 { return &c.Manager.MaxSnapshotBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"The total size of the snapshots of each owner."),
		defineSetting(KeyCheckpointBytes, func(c *Config) *int64 { return &c.Manager.MaxCheckpointBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"The total size of the checkpoints of all sandboxes."),
		defineSetting(KeyCheckpointAge, func(c *Config) *time.Duration { return &c.Manager.MaxCheckpointAge }, setLifetime,
			"The age at which a checkpoint is removed; 0 keeps it as long as its sandbox exists."),
		defineSetting(KeyMaxTemplates, func(c *Config) *int { return &c.Manager.MaxTemplates }, numberOf("templates", 0, 1e6),
			"The number of templates of each owner; 0 forbids them."),
		defineSetting(KeyTemplateBytes, func(c *Config) *int64 { return &c.Manager.MaxTemplateBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"The total size of the builds of each owner's templates."),
		defineSetting(KeyMaxBuilds, func(c *Config) *int { return &c.Manager.MaxBuilds }, numberOf("builds", 1, 1000),
			"The number of templates that are built at the same time, at most half (rounded up) for one owner. Further builds wait."),
		defineSetting(KeyBuildTimeout, func(c *Config) *time.Duration { return &c.Manager.BuildTimeout }, timeOf("3600"),
			"The time limit for building a template, without the time to wait for a slot."),
		defineSetting(KeyUploadBytes, func(c *Config) *int64 { return &c.Manager.MaxUploadBytes }, sizeOf(1<<20, "1m", `"8g"`),
			"The total size of the files that clients send for one owner's builds, packed and unpacked."),
		defineSetting(KeyUploadTotal, func(c *Config) *int64 { return &c.Manager.MaxUploadTotal }, sizeOf(1<<20, "1m", `"32g"`),
			"The total size of such files of all owners."),
		defineSetting(KeyDeleteOnStop, func(c *Config) *bool { return &c.Manager.DeleteOnStop }, setBool,
			"Whether the server deletes all sandboxes when it is stopped, within 30 s. Otherwise they outlive it."),
		defineSetting(KeyOwnerQuota, func(c *Config) *int { return &c.Manager.OwnerQuota }, numberOf("sandboxes", 0, 1e6),
			"The number of sandboxes of each owner; 0 is no limit.").
			describedBy("half of `max_sandboxes` while other owners have keys or sandboxes; no limit for administrators"),
		defineSetting(KeyQuotas, func(c *Config) *map[string]int { return &c.Manager.Quotas }, setQuotas,
			"The number of sandboxes of individual owners: `{ alice = 5 }`. The variable: `alice=5 bob=2`."),
		defineSetting(KeyLabelQuotas, func(c *Config) *map[string]int { return &c.Manager.LabelQuotas }, setLabelQuotas,
			"The number of sandboxes that may have a label: `{ \"team=red\" = 5 }`. The variable: `team=red=5`."),
	}
}

func usageSettings() []setting {
	percent := numberOf("percent", 0, 100)
	return []setting{
		defineSetting(KeyUsageInterval, func(c *Config) *time.Duration { return &c.Usage.Interval }, setInterval,
			"The time between two measurements of how much each sandbox uses of its limits; 0 is never."),
		defineSetting(KeyUsageMemory, func(c *Config) *int { return &c.Usage.Memory }, percent,
			"The percentage of the memory limit at which the server records an event, `usage warning`; 0 is never."),
		defineSetting(KeyUsageCPU, func(c *Config) *int { return &c.Usage.CPU }, percent,
			"The same for processors; the use must be that high in three measurements in a row."),
		defineSetting(KeyUsageDisk, func(c *Config) *int { return &c.Usage.Disk }, percent,
			"The same for the disk."),
		defineSetting(KeyUsagePIDs, func(c *Config) *int { return &c.Usage.PIDs }, percent,
			"The same for processes."),
		defineSetting(KeyUsageAction, func(c *Config) *string { return &c.Usage.Action }, oneOf(UsageWarn, UsageKill),
			"What the server does in addition: nothing (warn), or stop the sandbox when its use stays high (kill)."),
		defineSetting(KeyUsageSustained, func(c *Config) *time.Duration { return &c.Usage.Sustained }, timeOf("60"),
			"The time for which the use must stay high until kill stops the sandbox."),
	}
}

func queueSettings() []setting {
	return []setting{
		defineSetting(KeyQueueProvider, func(c *Config) *string { return &c.Queue.Provider }, oneOf(QueueSQLite, QueueRedis),
			"The store of the queue of delayed work: sqlite (in `state_dir`) or redis."),
		defineSetting(KeyRedisURL, func(c *Config) *Secret { return &c.Queue.RedisURL }, setRedisURL,
			"The address of the Redis server: `redis://`, `rediss://` or `unix://`; required by redis.").orVariable("REDIS_URL", nil),
		defineSetting(KeyRedisCA, func(c *Config) *string { return &c.Queue.RedisCA }, setPath,
			"A file of authorities that are trusted for the certificate of the Redis server.").describedBy("the authorities that the machine trusts"),
		defineSetting(KeyQueueName, func(c *Config) *string { return &c.Queue.Name }, setName,
			"The prefix of the names of all keys in Redis."),
		defineSetting(KeyMaxRetries, func(c *Config) *int { return &c.Queue.MaxRetries }, numberOf("retries", 0, 10),
			"The number of retries of a failed operation. 0 to 10."),
	}
}

func archiveSettings() []setting {
	return []setting{
		defineSetting(KeyArchiveDir, func(c *Config) *string { return &c.Archive.Dir }, setPath,
			"The directory of the files of archived sandboxes.").describedBy("`archive` in `state_dir`"),
		defineSetting(KeyArchiveS3, func(c *Config) *string { return &c.Archive.S3 }, setBucket,
			"A store that is compatible with Amazon S3, instead of `dir`: `https://host/bucket/prefix`.").describedBy("none"),
		defineSetting(KeyArchiveRegion, func(c *Config) *string { return &c.Archive.S3Region }, setName,
			"The region of the bucket.").describedBy("the region that the store reports").orVariable("AWS_REGION", nil),
		defineSetting(KeyArchiveCA, func(c *Config) *string { return &c.Archive.S3CA }, setPath,
			"A file of authorities that are trusted for the certificate of the store.").describedBy("the authorities that the machine trusts"),
		defineSetting(KeyArchiveAccess, func(c *Config) *Secret { return &c.Archive.S3AccessKey }, setAccessKey,
			"An access key with read and write access to the bucket; required by `s3`.").orVariable("AWS_ACCESS_KEY_ID", nil),
		defineSetting(KeyArchiveSecret, func(c *Config) *Secret { return &c.Archive.S3SecretKey }, setAccessKey,
			"The secret key of `s3_access_key`.").orVariable("AWS_SECRET_ACCESS_KEY", nil),
	}
}

func auditSettings() []setting {
	return []setting{
		defineSetting(KeyAuditMaxAge, func(c *Config) *time.Duration { return &c.Audit.MaxAge }, setLifetime,
			"The age at which an event of the audit trail is exported and removed; 0 is never."),
		defineSetting(KeyAuditMaxSize, func(c *Config) *int64 { return &c.Audit.MaxSize }, sizeOf(1<<20, "1m", `"1g"`),
			"The size at which the oldest events of the audit trail are exported and removed."),
		defineSetting(KeyAuditExport, func(c *Config) *string { return &c.Audit.ExportDir }, setPath,
			"The directory to which removed events are exported, as compressed JSON lines.").describedBy("`audit` in `state_dir`"),
		defineSetting(KeyAuditExportSize, func(c *Config) *int64 { return &c.Audit.MaxExportSize }, sizeOf(1<<20, "1m", `"1g"`),
			"The total size of all exported files; the oldest are removed first."),
	}
}

func outputSettings() []setting {
	return []setting{
		defineSetting(KeyLogLevel, func(c *Config) *slog.Level { return &c.Log.Level }, setLevel,
			"The lowest level that is logged: debug, info, warn or error.").orVariable("LOG_LEVEL", readLevel),
		defineSetting(KeyLogFormat, func(c *Config) *string { return &c.Log.Format }, oneOf(FormatAuto, FormatConsole, FormatJSON),
			"The format of the log: console for people, json for programs, auto for console on a terminal and json elsewhere. ENV_MODE=local stands for console, other values for json.").
			orVariable("ENV_MODE", readMode),
		defineSetting(KeyMetrics, func(c *Config) *bool { return &c.Telemetry.Metrics }, setBool,
			"Whether the server serves metrics at /metrics."),
		defineSetting(KeyMetricsListen, func(c *Config) *string { return &c.Telemetry.MetricsListen }, setListen,
			"A TCP address at which the server serves /metrics only, without an API key, or none."),
		defineSetting(KeyMetricsToken, func(c *Config) *Secret { return &c.Telemetry.MetricsToken }, setToken,
			"The token that requests to metrics_listen must send as `Authorization: Bearer TOKEN`.").describedBy("nothing"),
		defineSetting(KeyMetricsSandboxes, func(c *Config) *int { return &c.Telemetry.MetricsSandboxes }, numberOf("sandboxes", 0, 10_000),
			"The number of sandboxes with metrics of their own: those that use the most memory. 0 disables these metrics. They are measured each usage.interval."),
	}
}
