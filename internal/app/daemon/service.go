package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/app/telemetry"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/audit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/core/uploads"
	"github.com/sandpit-dev/sandpit/internal/core/usage"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
	"github.com/sandpit-dev/sandpit/internal/files/tempdir"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/aio"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
	"github.com/sandpit-dev/sandpit/internal/front/api/mcp"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
	"github.com/sandpit-dev/sandpit/internal/front/publish"
	"github.com/sandpit-dev/sandpit/internal/front/sshd"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// service is a server with all of its parts, opened in the order of the fields and
// closed in the reverse.
type service struct {
	cfg    config.Config
	log    *slog.Logger
	notify notifier
	// registered are the providers.
	registered []registration.Provider
	// ownGroup moves the process into a control group of its own.
	ownGroup bool

	store     *store.Store
	queue     queue.Queue
	disks     *diskspace.Disks
	probe     diskProbe
	pulls     *fairshare.Pool
	images    *image.Store
	metrics   *telemetry.Metrics // nil: nothing is counted
	memory    *memory.Budget
	tracer    *telemetry.Tracer
	group     registration.Group // nil: none
	providers *providers
	manager   *manager.Manager
	keys      *api.Keys
	sshKeys   *sshkey.Keys
	sshTokens *sshkey.Tokens
	data      *data.Server
	e2b       *e2b.Server
	daytona   *daytona.Server
	toolbox   *toolbox.Server
	mcp       *mcp.Server
	aio       *aio.Server
	prePuller *prePuller
	contexts  *contexts
	// buildFiles counts the files that clients send for builds.
	buildFiles *diskspace.Budget
	uploads    *uploads.Store // files that clients of E2B and Daytona send for builds
	pruner     *audit.Pruner
	mux        *api.Mux
	publisher  *publish.Publisher
	tokens     *token.Tokens
	gateway    *preview.Gateway
	edge       *api.Edge
	// secretsKey keys digests of the values of build secrets.
	secretsKey []byte

	server          *api.Server
	paths           *api.Server                 // of previews by path; nil if not configured
	ssh             atomic.Pointer[sshd.Server] // nil: none, or not yet
	metricsServer   *http.Server
	metricsListener net.Listener // nil: none
}

// openParts opens all parts except the listeners. After an error, closeParts closes the
// opened ones.
func (s *service) openParts(ctx context.Context) (err error) {
	if err := checkPools(s.cfg, s.registered); err != nil {
		return err
	}
	s.disks, s.pulls = diskspace.NewDisks(s.cfg.Server.MinFreeDisk), newPulls(s.cfg)
	if s.images, err = openServerDirs(s.cfg, s.imageSharing); err != nil {
		return err
	}
	if s.store, err = store.Open(ctx, s.cfg.StateDir, store.Options{}); err != nil {
		return explainInUse(err, s.cfg.Server.Socket)
	}
	if err := s.openQueue(ctx); err != nil {
		return err
	}
	disk, err := s.openBudgets()
	if err != nil {
		return err
	}
	if s.secretsKey, err = loadSecretsKey(s.cfg); err != nil {
		return err
	}
	version := ReadVersions().Sandpit
	s.openTelemetry(version)
	s.group = s.enterGroup(ctx)
	if s.providers, err = openProviders(ctx, s.newSurroundings(), s.registered); err != nil {
		return err
	}
	s.publisher = publish.New(s.log)
	options := s.managerOptions()
	if options.BoundNetwork, err = boundNetwork(s.cfg); err != nil {
		return err
	}
	if options.TempDir, err = s.tempDir(ctx); err != nil {
		return err
	}
	options.Disk = disk
	if options.ArchiveDisk, err = s.archiveDisk(); err != nil {
		return err
	}
	if s.manager, err = manager.Open(ctx, options); err != nil {
		return err
	}
	if s.pruner, err = newPruner(s.cfg, s.store.Events(), s.log); err != nil {
		return err
	}
	if s.metrics != nil {
		s.metrics.Watch(telemetry.Sources{
			Manager: s.manager, Queue: s.queue, Shares: s.shareStatuses, Sandboxes: s.cfg.Telemetry.MetricsSandboxes,
		})
	}
	s.keys = api.NewKeys(s.store, clock.System{}, s.log)
	s.prePuller = newPrePuller(s.cfg.Image.PrePull, s.prepareImage, s.log)
	s.data = data.New(data.Options{
		Manager: s.manager, Timeout: s.cfg.Sandbox.Timeout, SessionTimeout: s.cfg.CommandTimeout(0), Memory: s.memory,
	})
	s.tokens, err = token.Open(ctx, token.Options{Store: s.store, Keys: s.keys, Dir: s.cfg.StateDir, Log: s.log})
	if err != nil {
		return err
	}
	s.sshKeys, s.sshTokens = sshkey.NewKeys(s.store, s.keys, clock.System{}, s.log), sshkey.NewTokens(clock.System{}, s.tokens)
	if err := s.openGateway(ctx); err != nil {
		return err
	}
	s.uploads = uploads.New(uploads.Options{Dir: filepath.Join(s.cfg.StateDir, "e2b"), Space: s.buildFiles, IsOwner: api.IsOwner})
	s.e2b = e2b.New(s.e2bOptions())
	s.daytona, s.toolbox = daytona.New(s.daytonaOptions()), toolbox.New(s.toolboxOptions())
	if err := s.daytona.Resume(ctx); err != nil {
		s.log.ErrorContext(ctx, "daytona: unreadable pending sandboxes ignored", slog.Any("error", err))
	}
	return s.openTools(ctx, version)
}

func (s *service) openTelemetry(version string) {
	if s.cfg.Telemetry.Metrics {
		s.metrics = telemetry.NewMetrics(version)
	}
	s.tracer = telemetry.NewTracer(s.cfg.Telemetry.Traces, version, s.metrics, s.log)
}

// openTools opens the interfaces for tools of agents: MCP's and AIO's.
func (s *service) openTools(ctx context.Context, version string) error {
	if err := mcp.CheckTools(s.cfg.Server.MCPTools); err != nil {
		return fmt.Errorf("%s: %w", config.KeyMCPTools, err)
	}
	servers, err := mcp.ReadServers(s.cfg.Server.MCPConfig)
	if err != nil {
		return fmt.Errorf("%s: %w", config.KeyMCPConfig, err)
	}
	s.mcp = mcp.New(ctx, mcp.Options{
		Tools: s.cfg.Server.MCPTools, Servers: servers, CommandTimeout: s.cfg.CommandTimeout(0),
		Manager: s.manager, Memory: s.memory,
		Request: func(p api.Principal, w wire.CreateRequest) manager.CreateRequest {
			return native.NewRequest(p, w, s.hostAccess())
		},
		MaxSessions: s.cfg.Server.MCPSessions, Idle: s.cfg.Server.MCPIdleTimeout,
		Preview: s.gateway.Ticket, Template: s.hasTemplate, Version: ReadVersions().Sandpit, Log: s.log,
	})
	s.aio, err = aio.New(aio.Options{
		Manager: s.manager, Servers: servers, CommandTimeout: s.cfg.CommandTimeout(0), Memory: s.memory, Version: version, Log: s.log,
	})
	return err
}

// openBudgets opens what owners share of disks and memory, and returns the disk of the
// server's state.
func (s *service) openBudgets() (*diskspace.Disk, error) {
	s.memory = newMemory(s.cfg.Server)
	disk, err := s.disks.At(s.cfg.StateDir)
	if err != nil {
		return nil, err
	}
	s.buildFiles = newBuildFiles(s.cfg.Manager, disk)
	s.contexts, err = openContexts(s.cfg.StateDir, s.buildFiles)
	return disk, err
}

// explainInUse says how the server that has the state directory is used.
func explainInUse(err error, socket string) error {
	if sandpit.CodeOf(err) != sandpit.Conflict || socket == "" {
		return err
	}
	return sandpit.WithHint(err, "use the server that runs, which your commands find by "+socket+" (sandpit ls); or stop that process, or choose another state directory")
}

// openQueue opens the queue and makes sure that it answers.
func (s *service) openQueue(ctx context.Context) error {
	c := s.cfg.Queue
	if c.Provider != config.QueueRedis {
		s.queue = s.store.Queue()
		return nil
	}
	q, err := queue.NewRedis(queue.RedisOptions{URL: c.RedisURL.Reveal(), CAFile: c.RedisCA, Prefix: c.Name})
	if err != nil {
		return err
	}
	s.queue = q
	return q.Check(ctx)
}

// tempDir returns where temporary directories are created, or "" if nowhere. An unusable
// default directory does not prevent the start.
func (s *service) tempDir(ctx context.Context) (string, error) {
	dir, err := tempdir.Check(s.cfg.TempDir)
	if err == nil || s.cfg.Explicit(config.KeyTempDir) {
		return dir, err
	}
	s.log.WarnContext(ctx, "sandboxes can have no temporary directories", slog.Any("error", err))
	return "", nil
}

func (s *service) managerOptions() manager.Options {
	c := s.cfg.Manager
	o := manager.Options{
		Store: s.store, Queue: s.queue, Providers: make(map[string]sandpit.Provider, len(s.registered)), Provider: s.cfg.Provider,
		Fallbacks: s.cfg.Fallbacks(), ProviderLimits: providerLimits(s.cfg, s.registered),
		Log: s.log, CompleteSpec: s.fillSpec, Environ: e2b.Environ, MaxSandboxes: c.MaxSandboxes, MaxVolumes: c.MaxVolumes, MaxVolumeBytes: c.MaxVolumeBytes,
		Quotas: manager.Quotas{
			Owner: c.OwnerQuota, Owners: c.Quotas, Labels: c.LabelQuotas, Share: !s.cfg.Explicit(config.KeyOwnerQuota),
		},
		Pools:    s.poolOptions(),
		Parallel: c.Parallel, CreateTimeout: c.CreateTimeout, CallTimeout: c.CallTimeout, KeepDeleted: c.Remember,
		IdleTimeout: c.IdleTimeout, IdleAction: sandpit.Action(c.IdleAction), Lifetime: c.Lifetime, Sweep: c.CleanupInterval, MaxRetries: s.cfg.Queue.MaxRetries,
	}
	o.Admit, o.ConfineFiles, o.DestroyOnClose = Admission(s.cfg, s.log), s.cfg.Sandbox.ConfineFiles, c.DeleteOnStop
	o.KeyOwners = s.keyOwners
	o.SecretsDir = filepath.Join(s.cfg.StateDir, "secrets")
	o.MaxSnapshots, o.MaxSnapshotBytes = c.MaxSnapshots, c.MaxSnapshotBytes
	o.MaxTemplates, o.MaxTemplateBytes, o.MaxBuilds, o.BuildTimeout = c.MaxTemplates, c.MaxTemplateBytes, c.MaxBuilds, c.BuildTimeout
	o.MaxSaved, o.MaxSavedBytes = c.MaxSaved, c.MaxSavedBytes
	if name := findBuilding(s.registered); name != "" {
		o.Builder, o.BuilderProvider = s.newBuilder(), name
		o.Builtins, o.Enforceable = builtinRecipes(), s.enforceableLimits
	}
	o.Images = preparer{s.images, s.providers}
	o.Usage = usageOptions(s.cfg.Usage)
	if s.publisher != nil {
		o.Publisher = s.publisher
	}
	if s.metrics != nil {
		o.Observer = s.metrics
	}
	for name, l := range s.providers.byName {
		var p sandpit.Provider = l
		if s.metrics != nil {
			p = s.metrics.Provider(name, p)
		}
		o.Providers[name] = s.tracer.Provider(name, p)
	}
	return o
}

// keyOwners returns the owners of API keys. Administrators are true, and so is the owner of
// requests that need no key.
func (s *service) keyOwners(ctx context.Context) (map[string]bool, error) {
	owners, err := s.store.Credentials().KeyOwners(ctx, clock.System{}.Now())
	if err == nil {
		owners[api.LocalOwner] = true
	}
	return owners, err
}

func usageOptions(c config.Usage) manager.Usage {
	o := manager.Usage{Every: c.Interval, High: make(map[usage.Kind]float64)}
	for kind, percent := range map[usage.Kind]int{usage.Memory: c.Memory, usage.CPU: c.CPU, usage.Disk: c.Disk, usage.PIDs: c.PIDs} {
		if percent > 0 {
			o.High[kind] = float64(percent) / 100
		}
	}
	if c.Action == config.UsageKill {
		o.Kill = c.Sustained
	}
	return o
}

// fillSpec gives a provider's sandbox what the configuration says, where its request says
// nothing.
func (s *service) fillSpec(provider string, spec *sandpit.Spec) {
	p, _ := findRegistration(s.registered, provider) // the manager refuses an unknown one
	if spec.Image == "" {
		spec.Image = defaultImage(s.cfg, p)
	}
	if spec.WorkDir == "" && s.cfg.Explicit(config.KeyWorkDir) {
		spec.WorkDir = s.cfg.Sandbox.WorkDir // an image's own goes before the default
	}
	fillNetwork(s.cfg, &spec.Network)
	if !p.OwnLimits {
		chosen := explicitLimits(s.cfg)
		orElse(&spec.Resources.Memory, chosen.Memory)
		orElse(&spec.Resources.CPUs, chosen.CPUs)
		orElse(&spec.Resources.Disk, chosen.Disk)
		orElse(&spec.Resources.PIDs, chosen.PIDs)
	}
	spec.Env = withUsualEnv(spec.Image, spec.Env)
}

func orElse[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}

// withUsualEnv returns an environment with what every sandbox has in it.
func withUsualEnv(i sandpit.Image, env map[string]string) map[string]string {
	all := map[string]string{
		"PYTHONUNBUFFERED": "1", // output is seen as it comes
		"LANG":             "C.UTF-8",
	}
	if i == sandpit.HostImage {
		// Distributions keep pip from changing the machine, which a sandbox does not share.
		all["PIP_BREAK_SYSTEM_PACKAGES"] = "1"
	}
	maps.Copy(all, env)
	return all
}

func (s *service) poolOptions() []manager.Pool {
	var pools []manager.Pool
	for _, p := range s.cfg.Pools {
		pools = append(pools, manager.Pool{
			Provider: p.Provider, Size: p.Size, Max: p.Max, Warm: manager.WarmUp,
			Spec: sandpit.Spec{
				Image: p.Image, Resources: p.Resources, Hostname: p.Hostname, Network: sandpit.NetworkPolicy{Online: p.NetworkEnabled},
			},
		})
	}
	return pools
}

// checkStore asks the store something.
func (s *service) checkStore(ctx context.Context) error {
	_, err := s.store.Credentials().ListKeys(ctx, "", 1)
	return err
}

// checkStoreWrites writes to the store. It is for readiness alone: a server whose disk is full
// is not to be restarted.
func (s *service) checkStoreWrites(ctx context.Context) error { return s.store.CheckWrite(ctx) }

func (s *service) checkQueue(ctx context.Context) error {
	_, err := s.queue.Stats(ctx)
	return err
}

// checkEngine asks the default provider and the fallbacks, at the same time, whether one of them can
// create sandboxes. The error is that of the default provider.
func (s *service) checkEngine(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	names := append([]string{s.cfg.Provider}, s.cfg.Fallbacks()...)
	type answer struct {
		name string
		err  error
	}
	answers := make(chan answer, len(names))
	var group sync.WaitGroup
	defer group.Wait()
	for _, name := range names {
		group.Go(func() { answers <- answer{name, s.providers.byName[name].checkProvider(ctx)} })
	}
	var failed error
	for range names {
		one := <-answers
		if one.err == nil {
			cancel()
			return nil
		}
		if one.name == s.cfg.Provider {
			failed = one.err
		}
	}
	return failed
}

// closeParts ends what open has opened. The sandboxes stay.
func (s *service) closeParts(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()
	var errs []error
	closeAs := func(what string, close func() error) {
		if err := close(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", what, err))
		}
	}
	if s.mcp != nil {
		closeAs("the sessions of agents", s.mcp.Close)
	}
	if s.aio != nil {
		closeAs("the sessions of AIO's clients", s.aio.Close)
	}
	if s.toolbox != nil {
		closeAs("the sessions of Daytona's clients", s.toolbox.Close)
	}
	if s.daytona != nil {
		closeAs("the changes and events of Daytona's clients", s.daytona.Close)
	}
	if s.data != nil {
		closeAs("the terminal sessions", s.data.Close)
	}
	if s.publisher != nil {
		closeAs("the published ports", s.publisher.Close)
	}
	if s.manager != nil {
		closeAs("the manager", func() error { return s.manager.Close(ctx) })
	}
	if s.providers != nil {
		closeAs("the providers", s.providers.closeAll)
	}
	if s.queue != nil {
		closeAs("the queue", s.queue.Close)
	}
	if s.store != nil {
		closeAs("the store", s.store.Close)
	}
	closeAs("the disks", func() error { return s.probe.waitForProbes(ctx) })
	if s.tracer != nil {
		closeAs("the tracer", func() error { return s.tracer.Close(ctx) })
	}
	if s.group != nil {
		if err := s.group.Close(); err != nil {
			s.log.WarnContext(ctx, "server: control group not removed; the next start removes it", slog.Any("error", err))
		}
	}
	return errors.Join(errs...)
}

// newSurroundings returns what the server's providers are opened with.
func (s *service) newSurroundings() registration.Surroundings {
	around := newSurroundings(s.cfg)
	around.Lasting, around.Identity, around.Group = true, s.store.Identity(), s.group
	around.Images, around.Guard, around.Log = s.images, registryGuard(s.cfg), s.log
	return around
}

// enterGroup moves the process into a control group of its own, and returns nil without the
// rights for one.
func (s *service) enterGroup(ctx context.Context) registration.Group {
	i := slices.IndexFunc(s.registered, func(p registration.Provider) bool { return p.EnterGroup != nil })
	if !s.ownGroup || i < 0 {
		return nil
	}
	group, err := s.registered[i].EnterGroup(memoryTotal(s.cfg.Server))
	if err != nil {
		s.log.InfoContext(ctx, "server: no control group of its own", slog.Any("reason", err))
		return nil
	}
	s.log.InfoContext(ctx, "server: entered a control group of its own", slog.String("group", group.String()))
	return group
}
