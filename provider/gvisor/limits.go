package gvisor

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// limitsRequest are the limits of one sandbox.
type limitsRequest struct {
	sandpit.Resources

	// Explicit are the limits that the spec has. If one of these cannot be enforced, creating
	// the sandbox fails; any other is left out and reported.
	Explicit []cgroup.Controller `json:"explicit,omitempty"`
	// DiskExplicit means that the spec has a limit of the disk.
	DiskExplicit bool `json:"disk_explicit,omitempty"`
	// Kernel is how many bytes of memory the sandbox's kernel may have besides, for what it keeps
	// of the files that it was started with.
	Kernel int64 `json:"kernel,omitempty"`
}

// orDefaults replaces the fields of r that are zero.
func orDefaults(r, defaults sandpit.Resources) sandpit.Resources {
	r.Memory = cmp.Or(r.Memory, defaults.Memory)
	r.CPUs = cmp.Or(r.CPUs, defaults.CPUs)
	r.Disk = cmp.Or(r.Disk, defaults.Disk)
	r.PIDs = cmp.Or(r.PIDs, defaults.PIDs)
	return r
}

// limitsFor adds the defaults to the limits of a spec.
func (p *Provider) limitsFor(spec sandpit.Resources) limitsRequest {
	return newLimitsRequest(spec, p.cfg.Defaults)
}

func newLimitsRequest(spec, defaults sandpit.Resources) limitsRequest {
	req := limitsRequest{Resources: orDefaults(spec, defaults), DiskExplicit: spec.Disk > 0}
	if spec.Memory > 0 {
		req.Explicit = append(req.Explicit, cgroup.Memory)
	}
	if spec.CPUs > 0 {
		req.Explicit = append(req.Explicit, cgroup.CPU)
	}
	return req
}

// notifyLimits passes notes to Config.Notice, each text once.
func (p *Provider) notifyLimits(notes []string) {
	text := strings.Join(notes, "; ")
	p.mu.Lock()
	defer p.mu.Unlock()
	if text == "" || p.noticed[text] || p.cfg.Notice == nil {
		return
	}
	p.noticed[text] = true
	p.cfg.Notice(text)
}

// layerFor decides where a sandbox stores what it writes. Memory is fastest and needs no file
// server, but the layer shares it with the programs: it gets at most half of the memory. Files
// of the machine need the file server anyway, and an explicit limit of the disk may need more
// space.
func layerFor(l limitsRequest, hasHostFiles bool) layer {
	half := l.Memory / 2
	if hasHostFiles || l.DiskExplicit && l.Disk > half {
		return layer{Size: l.Disk, Dir: &mountSource{}}
	}
	return layer{Size: min(l.Disk, half)}
}

// setupFor returns what the guest sets up first.
func setupFor(l limitsRequest) guest.Setup {
	return guest.Setup{PlainTmp: true, SharedMemory: l.Memory / 4, PIDs: l.PIDs}
}

// goferMount is the path of an empty directory in sandboxes that need a file server only for
// their layer: gVisor starts one only for mounts, and crashes without one. The guest unmounts
// it.
const goferMount = "/.sandpit-disk"

// limits are the control groups of one sandbox and the limits that they enforce.
type limits struct {
	groups cgroup.SandboxGroups
	// enforced is zero where there is no limit.
	enforced sandpit.Resources
	notes    []string // which limits are not enforced, for users
	kernel   int64    // see limitsRequest.Kernel
	raised   bool     // see raiseMemory
	// processors is how many the kernel process uses at most.
	processors int
	// events is nil without a limit of memory, and after takeEvents.
	events     *memoryEvents
	background sync.WaitGroup
}

// kernelLimits is what the kernel process of a sandbox reads when it starts.
type kernelLimits struct {
	Groups []string `json:"groups"` // directories of control groups to enter first
	Memory int64    `json:"memory,omitempty"`
	CPUs   int      `json:"cpus,omitempty"`
	// IDs are those that the process must have. Nil: any.
	IDs *sandboxIDs `json:"ids,omitempty"`
}

const (
	limitsName = "limits.json" // in the bundle
	cpuPeriod  = 100_000       // microseconds
	// kernelThreads is how many threads of the machine a sandbox's kernel may need besides those
	// for programs inside, and threadsPerTask how many for each task of these.
	kernelThreads  = 512
	threadsPerTask = 4
	// maxThreads is the largest limit that the machine's kernel accepts for a group.
	maxThreads = 4 << 20
)

// newLimits creates the control groups of an owner's sandbox, which processes with the IDs may
// enter, and sets its limits. If it fails, the caller removes what it has created.
func newLimits(g cgroup.Groups, id sandpit.ID, owner string, req limitsRequest, ids *sandboxIDs) (*limits, error) {
	l := &limits{groups: g.SandboxGroups(hostRoot, owner, string(id)), kernel: req.Kernel}
	for _, dir := range l.groups.Dirs() {
		if err := g.CreateSandboxGroup(hostRoot, dir); err != nil {
			return l, fmt.Errorf("create a control group: %w", err)
		}
		if err := ids.allowEntry(dir); err != nil {
			return l, fmt.Errorf("create a control group: %w", err)
		}
	}
	l.background.Go(g.WarmUp)
	// The sandbox's own kernel enforces these two on every machine.
	l.enforced.Disk, l.enforced.PIDs = req.Disk, req.PIDs
	for _, limit := range []struct {
		c      cgroup.Controller
		what   string
		wanted bool
		set    func() error
	}{
		{cgroup.Memory, "memory", req.Memory > 0, func() error { return l.setMemory(req.Memory) }},
		{cgroup.CPU, "CPU time", req.CPUs > 0, func() error { l.enforced.CPUs = req.CPUs; return nil }}, // see limitCPU
		{cgroup.PIDs, "the machine's threads", req.PIDs > 0, func() error { return l.setPIDs(req.PIDs) }},
	} {
		if !limit.wanted {
			continue
		}
		if l.groups[limit.c] != "" {
			if err := limit.set(); err != nil {
				return l, fmt.Errorf("limit %s: %w", limit.what, err)
			}
			continue
		}
		if slices.Contains(req.Explicit, limit.c) {
			return l, notEnforceable(limit.what, g.Missing[limit.c])
		}
		if limit.c != cgroup.PIDs { // the sandbox's own kernel limits these
			l.notes = append(l.notes, limit.what+" is not limited here: "+g.Missing[limit.c])
		}
	}
	return l, nil
}

// EnforceableLimits returns those of limits that can be enforced for sandboxes of this process.
// It creates no control group.
func EnforceableLimits(limits sandpit.Resources) sandpit.Resources {
	groups, err := cgroup.Plan("limits")
	if err != nil {
		return limits // creating a sandbox reports why
	}
	return enforceableLimits(groups, limits)
}

// CheckLimits returns an Unsupported error if one of limits cannot be enforced here, as creating
// a sandbox with it would, but before an image is downloaded.
func CheckLimits(limits sandpit.Resources) error {
	groups, err := cgroup.Plan("limits")
	if err != nil {
		return nil //nolint:nilerr // creating a sandbox reports why
	}
	enforceable := enforceableLimits(groups, limits)
	if enforceable.Memory != limits.Memory {
		return notEnforceable("memory", groups.Missing[cgroup.Memory])
	}
	if enforceable.CPUs != limits.CPUs {
		return notEnforceable("CPU time", groups.Missing[cgroup.CPU])
	}
	return nil
}

// enforceableLimits returns limits without those that have no control group.
func enforceableLimits(g cgroup.Groups, limits sandpit.Resources) sandpit.Resources {
	if g.Dir(cgroup.Memory) == "" {
		limits.Memory = 0
	}
	if g.Dir(cgroup.CPU) == "" {
		limits.CPUs = 0
	}
	return limits
}

func notEnforceable(what, reason string) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unsupported, "%s cannot be limited on this machine: %s", what, reason),
		limitsHint)
}

// limitsHint is what to do where control groups cannot be created.
const limitsHint = "run as root, or with systemd: systemd-run --user --scope -p Delegate=yes sandpit …; in a container make /sys/fs/cgroup writable"

// setMemory sets the limits described in memory.go.
func (l *limits) setMemory(bytes int64) error {
	l.enforced.Memory = bytes
	if err := l.setMemoryLimit(l.killLimit() + memoryReserve); err != nil {
		l.enforced.Memory = 0
		return err
	}
	l.openEvents()
	return nil
}

// limitCPU sets the limit of CPU time. It is called when the guest has answered and before any
// program runs: a kernel starts on several processors, and takes a third longer on fewer.
func (l *limits) limitCPU() error {
	cpus := l.enforced.CPUs
	if cpus == 0 {
		return nil
	}
	quota := strconv.Itoa(int(math.Round(cpus * cpuPeriod)))
	period := strconv.Itoa(cpuPeriod)
	err := errors.Join(
		l.groups.Set(cgroup.CPU, "cpu.cfs_period_us", "", period),
		l.groups.Set(cgroup.CPU, "cpu.cfs_quota_us", "", quota),
		l.groups.Set(cgroup.CPU, "", "cpu.max", quota+" "+period))
	if err != nil {
		return fmt.Errorf("limit CPU time: %w", err)
	}
	return nil
}

func (l *limits) setPIDs(tasks int) error {
	return l.groups.Set(cgroup.PIDs, "pids.max", "pids.max", strconv.Itoa(min(threadsPerTask*tasks+kernelThreads, maxThreads)))
}

// writeKernelLimits writes the kernelLimits to the bundle.
func (l *limits) writeKernelLimits(bundle string, ids *sandboxIDs) error {
	k := kernelLimits{Groups: l.groups.Dirs(), Memory: l.enforced.Memory, IDs: ids}
	if l.enforced.CPUs > 0 {
		k.CPUs = countProcessors(l.enforced.CPUs)
	}
	l.processors = k.CPUs + k.extraProcessors()
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, limitsName), data, 0o644) //nolint:gosec // the directory is closed to others
}

// countProcessors returns how many processors programs see with a limit of CPU time.
func countProcessors(cpus float64) int { return min(int(math.Ceil(cpus)), runtime.NumCPU()) }

// removeGroups removes the groups; the sandbox's processes must have been killed.
func (l *limits) removeGroups() error {
	l.background.Wait()
	l.closeEvents()
	return l.groups.Remove()
}

// countKills returns how many processes were killed because memory ran out.
func (l *limits) countKills() (int64, error) {
	if l.groups[cgroup.Memory] == "" {
		return 0, nil
	}
	name := "memory.oom_control"
	if l.groups.IsV2(cgroup.Memory) {
		name = "memory.events"
	}
	return cgroup.ReadKey(l.groups.Path(cgroup.Memory, name), "oom_kill")
}

// enterLimits is the first thing that a kernel process or its file server does: it enters the
// sandbox's control groups, which then count everything that it does and starts.
func enterLimits(args []string) (kernelLimits, error) {
	var k kernelLimits
	bundle := findFlag(args, "--bundle")
	if bundle == "" {
		return k, nil // a helper of a process that has entered them
	}
	data, err := os.ReadFile(filepath.Join(bundle, limitsName)) //nolint:gosec // the arguments are the engine's
	if err != nil {
		return k, fmt.Errorf("read the limits: %w", err)
	}
	if err := json.Unmarshal(data, &k); err != nil {
		return k, fmt.Errorf("read the limits: %w", err)
	}
	if err := k.IDs.checkProcess(filepath.Base(args[0])); err != nil {
		return k, err
	}
	for _, dir := range k.Groups {
		if err := cgroup.Write(filepath.Join(dir, cgroup.ProcsFile), "0"); err != nil {
			return k, fmt.Errorf("enter a control group: %w", err)
		}
	}
	return k, nil
}

// setFlags returns the arguments of a kernel process with the memory and processors that
// programs inside see.
func (k kernelLimits) setFlags(args []string) []string {
	boot := slices.Index(args, "boot")
	if boot < 0 {
		return args
	}
	args = slices.Clone(args)
	if i := slices.Index(args, "--total-memory"); i >= 0 && i+1 < len(args) && k.Memory > 0 {
		args[i+1] = strconv.FormatInt(k.Memory, 10)
	}
	if k.CPUs > 0 {
		args = slices.Insert(args, boot+1, "--cpu-num="+strconv.Itoa(k.CPUs))
	}
	return args
}

// extraProcessors is how many more processors the kernel process itself uses than programs
// inside see. With a single one it waits whenever it waits for the machine's kernel, for 10 ms
// and more when programs start. The limit of CPU time applies nevertheless.
func (k kernelLimits) extraProcessors() int {
	if k.CPUs == 0 {
		return 0
	}
	return max(0, min(2, runtime.NumCPU())-k.CPUs)
}

// minKernelHeap is how many bytes a kernel process may have of its own before it collects
// garbage more often; an idle one has far less.
const minKernelHeap = 32 << 20

// limitHeap has the kernel process collect its garbage before it has more than half of the
// sandbox's memory. It may need more; but a program must not be killed because of garbage.
func (k kernelLimits) limitHeap() {
	if k.Memory > 0 {
		debug.SetMemoryLimit(max(k.Memory/2, minKernelHeap))
	}
}

// findFlag returns the value of a flag in one of its two forms, or "".
func findFlag(args []string, flag string) string {
	for i, a := range args {
		if v, ok := strings.CutPrefix(a, flag+"="); ok {
			return v
		}
		if a == flag && i+1 < len(args) {
			return args[i+1]
		}
	}
	return ""
}
