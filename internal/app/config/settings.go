package config

import (
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// bothSizes is an example of two.
const bothSizes = `"512m" or "2g"`

// allSettings lists every setting there is. It is a function so that nothing is
// shared.
func allSettings() []setting {
	var list []setting
	for _, part := range [][]setting{
		programSettings(), sandboxSettings(), networkSettings(), imageSettings(), dockerSettings(), serverSettings(), tlsSettings(), previewSettings(),
		e2bSettings(), sshSettings(), managerSettings(), usageSettings(), queueSettings(), archiveSettings(), auditSettings(), toldSettings(),
	} {
		list = append(list, part...)
	}
	return list
}

func programSettings() []setting {
	return []setting{
		defineSetting(KeyURL, func(c *Config) *string { return &c.URL }, setURL,
			"Where clients find a server: http://, https:// or unix:// and a path.").
			describedBy("the socket of this user's own server").orVariable("AGENT_INFRA_URL", nil),
		defineSetting(KeyAPIKey, func(c *Config) *Secret { return &c.APIKey }, setKey,
			"The key that clients show the server. Better set as a variable than written into a file."),
		defineSetting(KeyCA, func(c *Config) *string { return &c.CA }, setPath,
			"A file of certificates one of which must have signed the server's, for clients.").describedBy("those the machine trusts"),
		defineSetting(KeyProvider, func(c *Config) *string { return &c.Provider }, setName,
			"What makes the sandboxes of requests that name no provider.").orVariable("SANDBOX_PROVIDER", nil),
		defineSetting(KeyEngine, func(c *Config) *string { return &c.Engine }, setPath,
			"A static sandpit to be used as the engine.").describedBy("this program itself"),
		defineSetting(KeyStateDir, func(c *Config) *string { return &c.StateDir }, setPath,
			"What must survive a restart.").describedBy("`$XDG_STATE_HOME/sandpit`; for root `/var/lib/sandpit`"),
		defineSetting(KeyCacheDir, func(c *Config) *string { return &c.CacheDir }, setPath,
			"What can be made again: images.").describedBy("`$XDG_CACHE_HOME/sandpit`; for root `/var/cache/sandpit`"),
		defineSetting(KeyRuntimeDir, func(c *Config) *string { return &c.RuntimeDir }, setPath,
			"Sockets and locks.").describedBy("`$XDG_RUNTIME_DIR/sandpit`; for root `/run/sandpit`; `run` in `state_dir` when that was set"),
		defineSetting(KeyTempDir, func(c *Config) *string { return &c.TempDir }, setPath,
			"Where temporary directories of sandboxes are made.").describedBy("`$TMPDIR`, else `/tmp`"),
		defineSetting(KeyPool, func(c *Config) *[]Pool { return &c.Pools }, setPools,
			"Sandboxes made ahead, as `[[pool]]` entries (see below). The variable has images and sizes: `host=4 python:3.12-slim=2`."),
	}
}

func sandboxSettings() []setting {
	return []setting{
		defineSetting(KeyUseSandbox, func(c *Config) *bool { return &c.Sandbox.UseSandbox }, setBool,
			"Accepted for files of OpenManus: tools of agents always run in a sandbox. `false` is reported (`sandpit doctor`, the log of `serve` and `mcp`) and has no effect."),
		defineSetting(KeyImage, func(c *Config) *sandpit.Image { return &c.Sandbox.Image }, setImage,
			"What a sandbox starts from."),
		defineSetting(KeyWorkDir, func(c *Config) *string { return &c.Sandbox.WorkDir }, setWorkDir,
			"Where commands start."),
		defineSetting(KeyMemoryLimit, func(c *Config) *int64 { return &c.Sandbox.MemoryLimit }, sizeOf(minMemory, "32m", bothSizes),
			"Memory, swap included. At least 32m."),
		defineSetting(KeyCPULimit, func(c *Config) *float64 { return &c.Sandbox.CPULimit }, setCPU,
			"Processors; 0.5 is half of one. 0.01 to 1024."),
		defineSetting(KeyDiskLimit, func(c *Config) *int64 { return &c.Sandbox.DiskLimit }, sizeOf(minDisk, "1m", bothSizes),
			"What a sandbox may write and keep. At least 1m; files that are kept in memory take half of the memory at most."),
		defineSetting(KeyPIDsLimit, func(c *Config) *int { return &c.Sandbox.PIDsLimit }, numberOf("processes", 1, 1<<20),
			"Processes and threads. 1 to 1048576."),
		defineSetting(KeyTimeout, func(c *Config) *time.Duration { return &c.Sandbox.Timeout }, timeOf("300"),
			"How long a command may take whose request names no time: see [Time limits of commands](#time-limits-of-commands)."),
		defineSetting(KeyNetworkEnabled, func(c *Config) *bool { return &c.Sandbox.NetworkEnabled }, setBool,
			"Whether a sandbox reaches the network."),
		defineSetting(KeyCommandScreen, func(c *Config) *string { return &c.Sandbox.CommandScreen },
			oneOf(ScreenOff, ScreenWarn, ScreenAsk, ScreenDeny),
			"What happens to a command that looks dangerous, by whichever way it comes: off, warn, ask (only `sandpit run` can; elsewhere as deny) or deny."),
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
			"When a registry is asked: missing, always or never."),
		defineSetting(KeyImageMirrors, func(c *Config) *map[string][]string { return &c.Image.Mirrors }, setMirrors,
			"Registries tried before another. The variable: `docker.io=one,two ghcr.io=three`."),
		defineSetting(KeyImageInsecure, func(c *Config) *[]string { return &c.Image.Insecure }, setHosts,
			"Registries that may be spoken to without encryption."),
		defineSetting(KeyRegistries, func(c *Config) *[]string { return &c.Image.Registries }, setRegistries,
			"Registries at addresses that are not public, or ranges of addresses, that users of a server may have asked; administrators may have all."),
		defineSetting(KeyImageAuth, func(c *Config) *map[string]Login { return &c.Image.Auth }, setAuth,
			"Logins, besides those that Docker knows: `registry=user:password`."),
		defineSetting(KeyDockerConfig, func(c *Config) *string { return &c.Image.DockerConfig }, setPath,
			"The directory of Docker's config.json.").describedBy("`$DOCKER_CONFIG`, else `~/.docker`"),
		defineSetting(KeyCacheSize, func(c *Config) *int64 { return &c.Image.CacheSize }, sizeOf(minCache, "64m", `"20g"`),
			"The maximum size of cached images; the least recently used ones are removed first. On a server, templates and imported images do not count, "+
				"and an image that does not fit is refused. At least 64m."),
		defineSetting(KeyOwnerCacheSize, func(c *Config) *int64 { return &c.Image.OwnerCacheSize }, sizeOf(minCache, "64m", `"5g"`),
			"Each owner's share of that on a server: images that the owner has fetched, and steps of its builds. At least 64m.").describedBy("half of `image.cache_size`"),
		defineSetting(KeyMaxPulls, func(c *Config) *int { return &c.Image.MaxPulls }, numberOf("images", 1, 1000),
			"Images that a server fetches at a time, at most half of them for one owner. 1 to 1000."),
		defineSetting(KeyPullTimeout, func(c *Config) *time.Duration { return &c.Image.PullTimeout }, timeOf("1800"),
			"How long fetching one image may take."),
		defineSetting(KeyPrePull, func(c *Config) *[]string { return &c.Image.PrePull }, setImages,
			"Images that a server fetches when it starts, for its default provider. The variable has commas or spaces between them."),
	}
}

func serverSettings() []setting {
	return []setting{
		defineSetting(KeyListen, func(c *Config) *string { return &c.Server.Listen }, setListen,
			"The TCP address of the server, or none. On another than a loopback address the server starts only when there is an API key."),
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
			"Connections at a time. 1 to 1048576; no more than half of the files that the server may have open."),
		defineSetting(KeyMinFreeDisk, func(c *Config) *int64 { return &c.Server.MinFreeDisk }, sizeOf(0, "0", `"1g"`),
			"The space that stays free on a disk, but at most a twentieth of the disk. Requests that need more are refused; deleting keeps working."),
		defineSetting(KeyAddressConnections, func(c *Config) *int { return &c.Server.MaxConnectionsPerAddress }, numberOf("connections", 0, 1<<20),
			"Connections at a time from one address (IPv6: one /64); 0 is the default. Trusted proxies are exempt.").describedBy("half of `max_connections`"),
		defineSetting(KeyOwnerConnections, func(c *Config) *int { return &c.Server.MaxConnectionsPerOwner }, numberOf("connections", 0, 1<<20),
			"Connections at a time of one owner; 0 is the default.").describedBy("half of `max_connections`"),
		defineSetting(KeyMaxRequests, func(c *Config) *int { return &c.Server.MaxRequests }, numberOf("requests", 0, 1e6),
			"Concurrent requests, streams included, and as many again for previews; 0 is the default.").
			describedBy("one for each 512 KiB of memory that the server may use, from 256 to 10000"),
		defineSetting(KeyOwnerRequests, func(c *Config) *int { return &c.Server.MaxRequestsPerOwner }, numberOf("requests", 0, 1e6),
			"How many of them may be of one owner; 0 is the default.").describedBy("a quarter of `max_requests`"),
		defineSetting(KeyServerMemory, func(c *Config) *int64 { return &c.Server.Memory }, sizeOf(1<<20, "1m", bothSizes),
			"The memory for requests and sessions of clients: bodies, output of commands, unread responses. At least 1m.").
			describedBy("a quarter of the memory that the server may use, up to `1g`"),
		defineSetting(KeyOwnerMemory, func(c *Config) *int64 { return &c.Server.MemoryPerOwner }, sizeOf(1<<20, "1m", bothSizes),
			"Each owner's share of that memory. At least 1m.").describedBy("a quarter of `memory`"),
		defineSetting(KeyTrustedProxies, func(c *Config) *[]string { return &c.Server.TrustedProxies }, setProxies,
			"Addresses or ranges of trusted reverse proxies: login attempts count for the address that their X-Forwarded-For names."),
		defineSetting(KeyRate, func(c *Config) *int { return &c.Server.Rate }, numberOf("requests", 1, 1e6),
			"Requests a second of each key, on average. 1 to 1000000."),
		defineSetting(KeyBurst, func(c *Config) *int { return &c.Server.Burst }, numberOf("requests", 1, 1e6),
			"Requests of each key at once. 1 to 1000000."),
		defineSetting(KeyDrain, func(c *Config) *time.Duration { return &c.Server.Drain }, timeOf("30"),
			"How long requests have to finish when the server ends."),
		defineSetting(KeyMountRoots, func(c *Config) *[]string { return &c.Server.MountRoots }, setPaths,
			"Directories of this machine that ordinary clients may mount in sandboxes. In the variable they are separated by colons."),
		defineSetting(KeyTemporaryMounts, func(c *Config) *bool { return &c.Server.TemporaryMounts }, setBool,
			"Whether ordinary clients may have temporary directories of this machine in their sandboxes. Their size is not limited."),
		defineSetting(KeyMCPSessions, func(c *Config) *int { return &c.Server.MCPSessions }, numberOf("sessions", 1, 1e5),
			"How many agent sessions each owner may have at `/mcp`, each with a sandbox of its own. 1 to 100000."),
		defineSetting(KeyMCPIdleTimeout, func(c *Config) *time.Duration { return &c.Server.MCPIdleTimeout }, timeOf("1800"),
			"How long such a session lasts without a request; its sandbox goes with it."),
		defineSetting(KeyMCPTools, func(c *Config) *[]string { return &c.Server.MCPTools }, setTools,
			"The tools that agents are offered unless their client chooses, by `sandpit mcp` too: `default`, `all`, categories or names of tools (`sandpit tool ls`).").
			describedBy("the default set"),
	}
}

func tlsSettings() []setting {
	return []setting{
		defineSetting(KeyTLS, func(c *Config) *string { return &c.Server.TLS }, oneOf(TLSOff, TLSFiles, TLSLocal, TLSAuto),
			"The server's certificates: off for none, files for tls_cert and tls_key, local for an authority of the server's own, "+
				"auto for Let's Encrypt or another one that speaks ACME.").describedBy("`files` with `tls_cert`, else `off`"),
		defineSetting(KeyTLSCert, func(c *Config) *string { return &c.Server.TLSCert }, setPath,
			"The certificate of the server in PEM form."),
		defineSetting(KeyTLSKey, func(c *Config) *string { return &c.Server.TLSKey }, setPath,
			"Its private key."),
		defineSetting(KeyACMEEmail, func(c *Config) *string { return &c.Server.ACMEEmail }, setEmail,
			"Where the authority of `tls = \"auto\"` may write to."),
		defineSetting(KeyACMEDirectory, func(c *Config) *string { return &c.Server.ACMEDirectory }, setDirectory,
			"The ACME directory of that authority.").describedBy("Let's Encrypt"),
		defineSetting(KeyACMECA, func(c *Config) *string { return &c.Server.ACMECA }, setPath,
			"Authorities for the certificate of the directory.").describedBy("those the machine trusts"),
	}
}

func sshSettings() []setting {
	return []setting{
		defineSetting(KeySSHListen, func(c *Config) *string { return &c.SSH.Listen }, setListen,
			"The TCP address where sandboxes are reached by SSH, such as 127.0.0.1:2222, or none."),
		defineSetting(KeySSHConnections, func(c *Config) *int { return &c.SSH.MaxConnections }, numberOf("connections", 1, 1e4),
			"SSH connections at a time. 1 to 10000."),
		defineSetting(KeySSHOwnerConnections, func(c *Config) *int { return &c.SSH.MaxConnectionsPerOwner }, numberOf("connections", 0, 1e4),
			"How many of them may be of one owner; 0 is the default.").describedBy("half of `max_connections`"),
		defineSetting(KeySSHIdleTimeout, func(c *Config) *time.Duration { return &c.SSH.IdleTimeout }, timeOf("3600"),
			"How long an SSH connection may carry nothing before it is closed. Until then its sandbox is in use."),
	}
}

func managerSettings() []setting {
	return []setting{
		defineSetting(KeyMaxSandboxes, func(c *Config) *int { return &c.Manager.MaxSandboxes }, numberOf("sandboxes", 1, 1e6),
			"How many sandboxes there may be, stopped ones left aside. 1 to 1000000."),
		defineSetting(KeyIdleTimeout, func(c *Config) *time.Duration { return &c.Manager.IdleTimeout }, timeOf("3600"),
			"The time without use until `idle_action` happens to a sandbox whose request does not say."),
		defineSetting(KeyIdleAction, func(c *Config) *string { return &c.Manager.IdleAction }, oneOf("suspend", "stop", "pause", "kill"),
			"What happens to an idle sandbox whose request does not say: it is suspended (paused on disk), stopped or paused, and resumes when it is used, or it is deleted with its files (kill). One that cannot be suspended is stopped or paused."),
		defineSetting(KeyCleanupInterval, func(c *Config) *time.Duration { return &c.Manager.CleanupInterval }, timeOf("300"),
			"The longest time between two looks for what is overdue."),
		defineSetting(KeyCreateTimeout, func(c *Config) *time.Duration { return &c.Manager.CreateTimeout }, timeOf("120"),
			"How long creating a sandbox may take, once its image is available and its turn has come."),
		defineSetting(KeyCallTimeout, func(c *Config) *time.Duration { return &c.Manager.CallTimeout }, timeOf("30"),
			"How long a provider may take for anything else."),
		defineSetting(KeyParallel, func(c *Config) *int { return &c.Manager.Parallel }, numberOf("sandboxes", 1, 1000),
			"Sandboxes that are created or started at a time, at most half (rounded up) for one owner. Further requests wait. 1 to 1000."),
		defineSetting(KeyLifetime, func(c *Config) *time.Duration { return &c.Manager.Lifetime }, setLifetime,
			"How long a sandbox exists when its request does not say; 0 is for ever."),
		defineSetting(KeyRemember, func(c *Config) *time.Duration { return &c.Manager.Remember }, timeOf("3600"),
			"How long it is remembered why a deleted sandbox is gone."),
		defineSetting(KeyMaxVolumes, func(c *Config) *int { return &c.Manager.MaxVolumes }, numberOf("volumes", 0, 1e6),
			"How many volumes each owner may have; 0 forbids them."),
		defineSetting(KeyVolumeBytes, func(c *Config) *int64 { return &c.Manager.MaxVolumeBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"How large the volumes of each owner may be together. Sandboxes that can write them are paused if they are larger."),
		defineSetting(KeyMaxSaved, func(c *Config) *int { return &c.Manager.MaxSaved }, numberOf("sandboxes", 0, 1e6),
			"How many stopped, suspended (paused on disk) or archived sandboxes each owner may have; 0 forbids them."),
		defineSetting(KeySavedBytes, func(c *Config) *int64 { return &c.Manager.MaxSavedBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"The disk space of each owner's stopped, suspended and archived sandboxes and checkpoints together."),
		defineSetting(KeyMaxSnapshots, func(c *Config) *int { return &c.Manager.MaxSnapshots }, numberOf("snapshots", 0, 1e6),
			"How many snapshots each owner may have; 0 forbids them."),
		defineSetting(KeySnapshotBytes, func(c *Config) *int64 { return &c.Manager.MaxSnapshotBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"How large the snapshots of each owner may be together."),
		defineSetting(KeyCheckpointBytes, func(c *Config) *int64 { return &c.Manager.MaxCheckpointBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"How large the checkpoints of all sandboxes may be together."),
		defineSetting(KeyCheckpointAge, func(c *Config) *time.Duration { return &c.Manager.MaxCheckpointAge }, setLifetime,
			"How old a checkpoint may become before it is removed; 0 is as old as its sandbox."),
		defineSetting(KeyMaxTemplates, func(c *Config) *int { return &c.Manager.MaxTemplates }, numberOf("templates", 0, 1e6),
			"How many templates each owner may have; 0 forbids them."),
		defineSetting(KeyTemplateBytes, func(c *Config) *int64 { return &c.Manager.MaxTemplateBytes }, sizeOf(1<<20, "1m", `"100g"`),
			"How large the builds of each owner's templates may be together."),
		defineSetting(KeyMaxBuilds, func(c *Config) *int { return &c.Manager.MaxBuilds }, numberOf("builds", 1, 1000),
			"Templates that are built at a time, at most half (rounded up) for one owner. Further builds wait."),
		defineSetting(KeyBuildTimeout, func(c *Config) *time.Duration { return &c.Manager.BuildTimeout }, timeOf("3600"),
			"How long the build of a template may take, from when its turn has come."),
		defineSetting(KeyUploadBytes, func(c *Config) *int64 { return &c.Manager.MaxUploadBytes }, sizeOf(1<<20, "1m", `"8g"`),
			"The total size of the files that clients send for one owner's builds, packed and unpacked."),
		defineSetting(KeyUploadTotal, func(c *Config) *int64 { return &c.Manager.MaxUploadTotal }, sizeOf(1<<20, "1m", `"32g"`),
			"The total size of such files of all owners."),
		defineSetting(KeyDeleteOnStop, func(c *Config) *bool { return &c.Manager.DeleteOnStop }, setBool,
			"Whether an orderly end of the server deletes all sandboxes, within 30 s. Otherwise they outlive it."),
		defineSetting(KeyOwnerQuota, func(c *Config) *int { return &c.Manager.OwnerQuota }, numberOf("sandboxes", 0, 1e6),
			"How many sandboxes each owner may have; 0 is no limit.").
			describedBy("half of `max_sandboxes` while other owners have keys or sandboxes; no limit for administrators"),
		defineSetting(KeyQuotas, func(c *Config) *map[string]int { return &c.Manager.Quotas }, setQuotas,
			"How many single owners may have: `{ alice = 5 }`. The variable: `alice=5 bob=2`."),
		defineSetting(KeyLabelQuotas, func(c *Config) *map[string]int { return &c.Manager.LabelQuotas }, setLabelQuotas,
			"How many sandboxes may have a label: `{ \"team=red\" = 5 }`. The variable: `team=red=5`."),
	}
}

func usageSettings() []setting {
	percent := numberOf("percent", 0, 100)
	return []setting{
		defineSetting(KeyUsageInterval, func(c *Config) *time.Duration { return &c.Usage.Interval }, setInterval,
			"How often it is measured what each sandbox uses of its limits; 0 is never."),
		defineSetting(KeyUsageMemory, func(c *Config) *int { return &c.Usage.Memory }, percent,
			"From how many percent of the memory on there is an event, `usage warning`; 0 is never."),
		defineSetting(KeyUsageCPU, func(c *Config) *int { return &c.Usage.CPU }, percent,
			"The same for processors, in three measurements in a row."),
		defineSetting(KeyUsageDisk, func(c *Config) *int { return &c.Usage.Disk }, percent,
			"The same for the disk."),
		defineSetting(KeyUsagePIDs, func(c *Config) *int { return &c.Usage.PIDs }, percent,
			"The same for processes."),
		defineSetting(KeyUsageAction, func(c *Config) *string { return &c.Usage.Action }, oneOf(UsageWarn, UsageKill),
			"What happens besides: warn for nothing, kill to stop the sandbox when its use stays high."),
		defineSetting(KeyUsageSustained, func(c *Config) *time.Duration { return &c.Usage.Sustained }, timeOf("60"),
			"How long it must be high, without a break, for kill."),
	}
}

func queueSettings() []setting {
	return []setting{
		defineSetting(KeyQueueProvider, func(c *Config) *string { return &c.Queue.Provider }, oneOf(QueueSQLite, QueueRedis),
			"Where it is kept what is to be done later: sqlite (in `state_dir`) or redis."),
		defineSetting(KeyRedisURL, func(c *Config) *Secret { return &c.Queue.RedisURL }, setRedisURL,
			"`redis://`, `rediss://` or `unix://`; needed by redis.").orVariable("REDIS_URL", nil),
		defineSetting(KeyRedisCA, func(c *Config) *string { return &c.Queue.RedisCA }, setPath,
			"Authorities for the certificate of the Redis server.").describedBy("those the machine trusts"),
		defineSetting(KeyQueueName, func(c *Config) *string { return &c.Queue.Name }, setName,
			"What the names of all keys in Redis begin with."),
		defineSetting(KeyMaxRetries, func(c *Config) *int { return &c.Queue.MaxRetries }, numberOf("retries", 0, 10),
			"How often what failed is tried again. 0 to 10."),
	}
}

func archiveSettings() []setting {
	return []setting{
		defineSetting(KeyArchiveDir, func(c *Config) *string { return &c.Archive.Dir }, setPath,
			"Where the files of archived sandboxes go.").describedBy("`archive` in `state_dir`"),
		defineSetting(KeyArchiveS3, func(c *Config) *string { return &c.Archive.S3 }, setBucket,
			"A store that speaks the protocol of Amazon S3, instead of `dir`: `https://host/bucket/prefix`.").describedBy("none"),
		defineSetting(KeyArchiveRegion, func(c *Config) *string { return &c.Archive.S3Region }, setName,
			"Where the bucket is.").describedBy("the store is asked").orVariable("AWS_REGION", nil),
		defineSetting(KeyArchiveCA, func(c *Config) *string { return &c.Archive.S3CA }, setPath,
			"Authorities for the certificate of the store.").describedBy("those the machine trusts"),
		defineSetting(KeyArchiveAccess, func(c *Config) *Secret { return &c.Archive.S3AccessKey }, setAccessKey,
			"An access key with read and write access to the bucket; required by `s3`.").orVariable("AWS_ACCESS_KEY_ID", nil),
		defineSetting(KeyArchiveSecret, func(c *Config) *Secret { return &c.Archive.S3SecretKey }, setAccessKey,
			"The secret key that goes with it.").orVariable("AWS_SECRET_ACCESS_KEY", nil),
	}
}

func auditSettings() []setting {
	return []setting{
		defineSetting(KeyAuditMaxAge, func(c *Config) *time.Duration { return &c.Audit.MaxAge }, setLifetime,
			"How old an event of the audit trail may become before it is exported and removed; 0 is any age."),
		defineSetting(KeyAuditMaxSize, func(c *Config) *int64 { return &c.Audit.MaxSize }, sizeOf(1<<20, "1m", `"1g"`),
			"How large the audit trail may become before its oldest events are exported and removed."),
		defineSetting(KeyAuditExport, func(c *Config) *string { return &c.Audit.ExportDir }, setPath,
			"Where removed events are exported to, as compressed JSON lines.").describedBy("`audit` in `state_dir`"),
		defineSetting(KeyAuditExportSize, func(c *Config) *int64 { return &c.Audit.MaxExportSize }, sizeOf(1<<20, "1m", `"1g"`),
			"How large all exported files may become together; the oldest are removed first."),
	}
}

func toldSettings() []setting {
	return []setting{
		defineSetting(KeyLogLevel, func(c *Config) *slog.Level { return &c.Log.Level }, setLevel,
			"The lowest level that is logged: debug, info, warn or error.").orVariable("LOG_LEVEL", readLevel),
		defineSetting(KeyLogFormat, func(c *Config) *string { return &c.Log.Format }, oneOf(FormatAuto, FormatConsole, FormatJSON),
			"console for people, json for machines, auto for console on a terminal. ENV_MODE=local stands for console, any other for json.").
			orVariable("ENV_MODE", readMode),
		defineSetting(KeyMetrics, func(c *Config) *bool { return &c.Telemetry.Metrics }, setBool,
			"Whether the server has metrics at /metrics."),
		defineSetting(KeyMetricsListen, func(c *Config) *string { return &c.Telemetry.MetricsListen }, setListen,
			"A TCP address where /metrics alone is served without an API key, or none."),
		defineSetting(KeyMetricsToken, func(c *Config) *Secret { return &c.Telemetry.MetricsToken }, setToken,
			"The token that requests to metrics_listen must send as `Authorization: Bearer TOKEN`.").describedBy("nothing"),
		defineSetting(KeyMetricsSandboxes, func(c *Config) *int { return &c.Telemetry.MetricsSandboxes }, numberOf("sandboxes", 0, 10_000),
			"How many sandboxes have metrics of their own: those that use the most memory. 0 disables them. They are measured each usage.interval."),
	}
}
