package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

// guestDir is the directory of the guest in containers.
const guestDir = sandpit.GuestDir

// rootCapabilities are the capabilities of root in a sandbox: to become other users, and to use
// their files and processes. The others are dropped.
func rootCapabilities() []string {
	return []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"}
}

// facts are the features of an engine.
type facts struct {
	os, arch           string
	memory, cpus, pids bool // the engine can limit them
	swap               bool // the engine counts swap as memory
}

// readFacts asks the engine for its features once.
func (e *engine) readFacts(ctx context.Context) (facts, error) {
	e.factsMu.Lock()
	defer e.factsMu.Unlock()
	if e.facts != nil {
		return *e.facts, nil
	}
	limited, cancel := e.callContext(ctx)
	defer cancel()
	version, err := e.api.ServerVersion(limited, client.ServerVersionOptions{})
	if err != nil {
		return facts{}, e.wrapError(ctx, "ask for the version", err)
	}
	info, err := e.api.Info(limited, client.InfoOptions{})
	if err != nil {
		return facts{}, e.wrapError(ctx, "ask for the engine's features", err)
	}
	f := facts{
		os: version.Os, arch: version.Arch, memory: info.Info.MemoryLimit, swap: info.Info.SwapLimit,
		cpus: info.Info.CPUCfsQuota && info.Info.CPUCfsPeriod, pids: info.Info.PidsLimit,
	}
	if isPodman(version) && info.Info.CgroupVersion == "1" {
		rootless, err := e.isRootless(ctx)
		if err != nil {
			return facts{}, err
		}
		if rootless { // it accepts limits and silently ignores them
			f.memory, f.cpus, f.pids, f.swap = false, false, false, false
		}
	}
	if f.os != "linux" {
		return f, sandpit.Errorf(sandpit.Unsupported, "the docker engine at %s runs %s, want linux", e.address(), f.os)
	}
	if !limitsDisk(info.Info.Driver, info.Info.DriverStatus) {
		e.noDisk.Store(true)
		e.noticeOnce(noticeDisk)
	}
	e.facts = &f
	return f, nil
}

func isPodman(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" })
}

// isRootless reports whether Podman runs without root. Docker's client does not return that field.
func (e *engine) isRootless(ctx context.Context) (bool, error) {
	const asking = "ask whether the engine runs without root"
	limited, cancel := e.callContext(ctx)
	defer cancel()
	dial := e.api.Dialer()
	transport := &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxResponseHeaderBytes: 64 << 10, DisableKeepAlives: true,
	}
	r, err := http.NewRequestWithContext(limited, http.MethodGet, "http://engine/info", http.NoBody) // the dialer encrypts
	if err != nil {
		return false, err
	}
	res, err := transport.RoundTrip(r)
	if err != nil {
		return false, e.wrapError(ctx, asking, err)
	}
	defer res.Body.Close()
	var info struct{ Rootless bool }
	if err := json.NewDecoder(io.LimitReader(res.Body, maxStats)).Decode(&info); err != nil {
		return false, e.wrapError(ctx, asking, err)
	}
	return info.Rootless, nil
}

const noticeDisk = "this docker engine cannot limit the disk of a sandbox"

// limitsDisk reports whether a storage driver may be able to limit the disk. It is known for
// overlay2; other drivers are tried.
func limitsDisk(driver string, status [][2]string) bool {
	for _, fact := range status {
		if fact[0] == "Backing Filesystem" {
			return driver != "overlay2" || fact[1] == "xfs"
		}
	}
	return true
}

// limits are the limits of a container.
type limits struct {
	sandpit.Resources

	explicitDisk bool // the caller requested the limit of the disk
	gvisor       bool
}

// limitsFor returns the limits of a sandbox. A limit that the engine cannot enforce is an error if
// the caller requested it; otherwise it is omitted with a notice.
func (p *Provider) limitsFor(asked sandpit.Resources, f facts) (limits, error) {
	d := p.o.Defaults
	l := limits{
		Resources: sandpit.Resources{
			Memory: cmp.Or(asked.Memory, d.Memory), CPUs: cmp.Or(asked.CPUs, d.CPUs),
			Disk: cmp.Or(asked.Disk, d.Disk), PIDs: cmp.Or(asked.PIDs, d.PIDs),
		},
		explicitDisk: asked.Disk != 0,
		gvisor:       isGVisor(p.o.Runtime),
	}
	for _, one := range []struct {
		what          string
		asked, cannot bool
		leaveOut      func()
	}{
		{"memory", asked.Memory != 0, !f.memory, func() { l.Memory = 0 }},
		{"processors", asked.CPUs != 0, !f.cpus, func() { l.CPUs = 0 }},
		// The limit would also count gVisor's kernel, which ends when it reaches the limit.
		{"processes", asked.PIDs != 0, !f.pids || l.gvisor, func() { l.PIDs = 0 }},
	} {
		switch {
		case one.cannot && one.asked:
			return l, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this docker engine cannot limit the %s of a sandbox", one.what),
				"omit the limit; docker info shows what the engine can do")
		case one.cannot:
			one.leaveOut()
			p.engine.noticeOnce("this docker engine cannot limit the " + one.what + " of a sandbox")
		}
	}
	if l.Memory != 0 && !f.swap {
		p.engine.noticeOnce("this docker engine does not count swap as memory of a sandbox")
	}
	if p.engine.noDisk.Load() && !l.explicitDisk {
		l.Disk = 0
	}
	return l, nil
}

// isGVisor reports whether the name of an engine's runtime is gVisor's.
func isGVisor(runtime string) bool { return strings.Contains(runtime, "runsc") }

const diskOption = "size"

// containerConfig returns the configuration of a sandbox's container.
func (p *Provider) containerConfig(spec sandpit.Spec, img imageInfo, volume string, l limits) (*container.Config, *container.HostConfig) {
	config := &container.Config{
		Image:      img.ID,
		Entrypoint: []string{guestDir + "/" + guest.Name, guest.StdioArg},
		User:       "0:0", // the guest starts each program as its user
		WorkingDir: "/",
		Hostname:   cmp.Or(spec.Hostname, "sandpit"),
		OpenStdin:  true,
		StdinOnce:  p.o.Ephemeral, // the guest ends with its input
		StopSignal: "SIGTERM",
		Healthcheck: &container.HealthConfig{
			Test: []string{"NONE"}, // the image's health check is for the image's own program
		},
	}
	host := &container.HostConfig{
		NetworkMode:    container.NetworkMode(p.networkOf(spec)),
		LogConfig:      container.LogConfig{Type: "none"}, // the output is the connection to the guest
		CapDrop:        []string{"ALL"},
		CapAdd:         append(rootCapabilities(), p.o.Capabilities...),
		AutoRemove:     p.o.Ephemeral,
		SecurityOpt:    []string{"no-new-privileges"},
		IpcMode:        container.IPCModePrivate,
		ReadonlyRootfs: p.o.ReadOnlyRoot,
		ShmSize:        p.o.ShmSize,
		Runtime:        p.o.Runtime,
		UsernsMode:     container.UsernsMode(p.o.Userns),
		Resources: container.Resources{
			Memory: l.Memory, MemorySwap: l.Memory, NanoCPUs: int64(math.Round(l.CPUs * 1e9)),
			Ulimits: []*container.Ulimit{
				{Name: "nofile", Soft: p.o.OpenFiles, Hard: p.o.OpenFiles}, {Name: "core"},
			},
		},
		Mounts: []mount.Mount{{
			Type: mount.TypeVolume, Source: volume, Target: guestDir, ReadOnly: true,
			VolumeOptions: &mount.VolumeOptions{NoCopy: true, Labels: map[string]string{labelPart: "guest"}},
		}},
	}
	if l.PIDs != 0 {
		pids := int64(l.PIDs + guestThreads)
		host.PidsLimit = &pids
	}
	if l.Disk != 0 {
		host.StorageOpt = map[string]string{diskOption: strconv.FormatInt(l.Disk, 10)}
	}
	for _, m := range spec.Mounts {
		if m.Volume != "" {
			host.Mounts = append(host.Mounts, p.volumeMount(m))
			continue
		}
		host.Mounts = append(host.Mounts, mount.Mount{
			Type: mount.TypeBind, Source: m.Source, Target: m.Target, ReadOnly: m.ReadOnly,
			BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
		})
	}
	if p.o.ReadOnlyRoot {
		host.Tmpfs = p.memoryDirs(spec, img)
	}
	return config, host
}

// guestThreads is how many threads of the guest count against the limit of processes.
const guestThreads = 32

// memoryDirs returns the writable directories of a sandbox with a read-only root.
func (p *Provider) memoryDirs(spec sandpit.Spec, img imageInfo) map[string]string {
	size := ",size=" + strconv.FormatInt(p.o.TmpfsSize, 10)
	dirs := map[string]string{"/tmp": "mode=1777" + size, "/var/tmp": "mode=1777" + size, "/run": "mode=755" + size}
	if work := workDir(spec, img); work != "/" && work != sandpit.HomeDir {
		dirs[work] = "mode=1777" + size
	}
	for _, m := range spec.Mounts {
		delete(dirs, m.Target)
	}
	return dirs
}

func workDir(spec sandpit.Spec, img imageInfo) string {
	return cmp.Or(spec.WorkDir, img.WorkDir, sandpit.DefaultWorkDir)
}

// imageDir returns the working directory of an image that is created from a sandbox.
func imageDir(spec sandpit.Spec, img imageInfo) string {
	if spec.WorkDir == sandpit.HomeDir {
		return img.WorkDir // an image cannot express a home directory
	}
	return workDir(spec, img)
}
