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
	"sync"
	"sync/atomic"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/api/types/system"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

// guestDir is where containers see the guest.
const guestDir = sandpit.GuestDir

// rootCapabilities are what root of a sandbox may do there: be other users, and do
// with their files and processes what root does. The rest is dropped.
func rootCapabilities() []string {
	return []string{"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID"}
}

// engineFacts are what an engine can do.
type engineFacts struct {
	mu     sync.Mutex
	known  *facts
	noDisk atomic.Bool // it cannot limit the disk
}

type facts struct {
	os, arch           string
	memory, cpus, pids bool // can be limited
	swap               bool // counts as memory
}

// engineFacts asks the engine what it can do, once.
func (p *Provider) engineFacts(ctx context.Context) (facts, error) {
	p.engine.mu.Lock()
	defer p.engine.mu.Unlock()
	if p.engine.known != nil {
		return *p.engine.known, nil
	}
	limited, cancel := p.callContext(ctx)
	defer cancel()
	version, err := p.api.ServerVersion(limited, client.ServerVersionOptions{})
	if err != nil {
		return facts{}, p.engineError(ctx, "ask for the version", err)
	}
	info, err := p.api.Info(limited, client.InfoOptions{})
	if err != nil {
		return facts{}, p.engineError(ctx, "ask what the engine can do", err)
	}
	f := facts{
		os: version.Os, arch: version.Arch, memory: info.Info.MemoryLimit, swap: info.Info.SwapLimit,
		cpus: info.Info.CPUCfsQuota && info.Info.CPUCfsPeriod, pids: info.Info.PidsLimit,
	}
	if isPodman(version) && info.Info.CgroupVersion == "1" {
		rootless, err := p.isRootless(ctx)
		if err != nil {
			return facts{}, err
		}
		if rootless { // it takes limits, ignores them, and does not say so
			f.memory, f.cpus, f.pids, f.swap = false, false, false, false
		}
	}
	if f.os != "linux" {
		return f, sandpit.Errorf(sandpit.Unsupported, "the docker engine at %s runs %s, want linux", p.engineHost(), f.os)
	}
	if !limitsDisk(info.Info.Driver, info.Info.DriverStatus) {
		p.engine.noDisk.Store(true)
		p.noticeOnce(noticeDisk)
	}
	p.engine.known = &f
	return f, nil
}

func isPodman(v client.ServerVersionResult) bool {
	return slices.ContainsFunc(v.Components, func(c system.ComponentVersion) bool { return c.Name == "Podman Engine" })
}

// isRootless asks what only Podman tells, and Docker's client leaves out.
func (p *Provider) isRootless(ctx context.Context) (bool, error) {
	const asking = "ask whether the engine runs without root"
	limited, cancel := p.callContext(ctx)
	defer cancel()
	dial := p.api.Dialer()
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
		return false, p.engineError(ctx, asking, err)
	}
	defer res.Body.Close()
	var info struct{ Rootless bool }
	if err := json.NewDecoder(io.LimitReader(res.Body, maxStats)).Decode(&info); err != nil {
		return false, p.engineError(ctx, asking, err)
	}
	return info.Rootless, nil
}

const noticeDisk = "this docker engine cannot limit the disk of a sandbox"

// limitsDisk reports whether a storage driver may be able to limit the disk. Of the
// usual one that is known; others are tried.
func limitsDisk(driver string, status [][2]string) bool {
	for _, fact := range status {
		if fact[0] == "Backing Filesystem" {
			return driver != "overlay2" || fact[1] == "xfs"
		}
	}
	return true
}

// limits are what a container is given, and whether somebody asked for the disk's.
type limits struct {
	sandpit.Resources

	explicitDisk bool
	gvisor       bool
}

// limitsFor returns the limits of a sandbox. One that the engine cannot enforce is
// refused if it was asked for, else left out and told.
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
		// The kernel of such a sandbox would be counted too, and end when there are no more.
		{"processes", asked.PIDs != 0, !f.pids || l.gvisor, func() { l.PIDs = 0 }},
	} {
		switch {
		case one.cannot && one.asked:
			return l, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this docker engine cannot limit the %s of a sandbox", one.what),
				"leave the limit out; docker info tells what the engine can do")
		case one.cannot:
			one.leaveOut()
			p.noticeOnce("this docker engine cannot limit the " + one.what + " of a sandbox")
		}
	}
	if l.Memory != 0 && !f.swap {
		p.noticeOnce("this docker engine does not count swap as memory of a sandbox")
	}
	if p.engine.noDisk.Load() && !l.explicitDisk {
		l.Disk = 0
	}
	return l, nil
}

// isGVisor reports whether an engine's runtime is gVisor's, by its name.
func isGVisor(runtime string) bool { return strings.Contains(runtime, "runsc") }

const diskOption = "size"

// containerConfig returns a container with a spec's files, limits and walls.
func (p *Provider) containerConfig(spec sandpit.Spec, img imageInfo, volume string, l limits) (*container.Config, *container.HostConfig) {
	config := &container.Config{
		Image:      img.ID,
		Entrypoint: []string{guestDir + "/" + guest.Name, guest.StdioArg},
		User:       "0:0", // the guest starts programs as who they shall be
		WorkingDir: "/",
		Hostname:   cmp.Or(spec.Hostname, "sandpit"),
		OpenStdin:  true,
		StdinOnce:  p.o.Ephemeral, // the guest ends with its input
		StopSignal: "SIGTERM",
		Healthcheck: &container.HealthConfig{
			Test: []string{"NONE"}, // the image's is for the image's own program
		},
	}
	host := &container.HostConfig{
		NetworkMode:    container.NetworkMode(p.networkOf(spec)),
		LogConfig:      container.LogConfig{Type: "none"}, // all that is put out is for the tether
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

// guestThreads is what the guest itself needs of the limit of processes.
const guestThreads = 32

// memoryDirs are the directories that a sandbox can write when its root is read
// only.
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

// imageDir is the working directory of an image made from a sandbox.
func imageDir(spec sandpit.Spec, img imageInfo) string {
	if spec.WorkDir == sandpit.HomeDir {
		return img.WorkDir // an image cannot say it
	}
	return workDir(spec, img)
}
