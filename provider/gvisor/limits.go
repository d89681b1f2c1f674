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
)

// limitsRequest says what a sandbox may use at most.
type limitsRequest struct {
	sandpit.Resources

	// Explicit are the limits that somebody asked for. One of these that cannot
	// be enforced is an error; any other is left out and reported.
	Explicit []controller `json:"explicit,omitempty"`
	// DiskExplicit means that somebody asked for that much room.
	DiskExplicit bool `json:"disk_explicit,omitempty"`
	// Kernel is how many bytes of memory the sandbox's kernel may take besides, for
	// what it keeps of the files that it was started with.
	Kernel int64 `json:"kernel,omitempty"`
}

// orDefaults fills in what r leaves open.
func orDefaults(r, defaults sandpit.Resources) sandpit.Resources {
	r.Memory = cmp.Or(r.Memory, defaults.Memory)
	r.CPUs = cmp.Or(r.CPUs, defaults.CPUs)
	r.Disk = cmp.Or(r.Disk, defaults.Disk)
	r.PIDs = cmp.Or(r.PIDs, defaults.PIDs)
	return r
}

// limitsFor adds the defaults to what was asked for.
func (p *Provider) limitsFor(asked sandpit.Resources) limitsRequest {
	req := limitsRequest{Resources: orDefaults(asked, p.cfg.Defaults), DiskExplicit: asked.Disk > 0}
	if asked.Memory > 0 {
		req.Explicit = append(req.Explicit, memoryController)
	}
	if asked.CPUs > 0 {
		req.Explicit = append(req.Explicit, cpuController)
	}
	return req
}

// notify passes notes to Config.Notice, each text once.
func (p *Provider) notify(notes []string) {
	text := strings.Join(notes, "; ")
	p.mu.Lock()
	defer p.mu.Unlock()
	if text == "" || p.noticed[text] || p.cfg.Notice == nil {
		return
	}
	p.noticed[text] = true
	p.cfg.Notice(text)
}

// layerFor decides where a sandbox keeps what it writes. In memory is quickest
// and needs no file server, but then it must fit beside the programs: it gets at
// most half of the memory. Files of the machine need the file server anyway, and
// a disk that somebody asked for may need more room.
func layerFor(l limitsRequest, hostFiles bool) layer {
	half := l.Memory / 2
	if hostFiles || l.DiskExplicit && l.Disk > half {
		return layer{Size: l.Disk, Dir: &mountSource{}}
	}
	return layer{Size: min(l.Disk, half)}
}

// setupFor says what the guest does first.
func setupFor(l limitsRequest) guest.Setup {
	return guest.Setup{PlainTmp: true, SharedMemory: l.Memory / 4, PIDs: l.PIDs}
}

// goferMount is where an empty directory is shown in sandboxes that need a file
// server for their layer only: gVisor starts one for mounts alone, and without
// one it crashes. The guest takes it away again.
const goferMount = "/.sandpit-disk"

// limits are a sandbox's control groups and what they hold it to.
type limits struct {
	groups map[controller]string // the sandbox's own, by controller
	// enforced is zero where there is no limit.
	enforced sandpit.Resources
	notes    []string // what is not enforced, for people
	kernel   int64    // bytes of memory beyond the limit, see limitsRequest
	roomy    bool     // see giveRoom
	// events is nil without a limit of memory, and after somebody took them.
	events     *memoryEvents
	background sync.WaitGroup
}

// kernelLimits is what the kernel process of a sandbox reads when it starts.
type kernelLimits struct {
	Groups []string `json:"groups"` // directories to enter, before anything else
	Memory int64    `json:"memory,omitempty"`
	CPUs   int      `json:"cpus,omitempty"`
	// IDs are those that the process must have. Nil: any.
	IDs *sandboxIDs `json:"ids,omitempty"`
}

const (
	limitsName = "limits.json" // in the bundle
	cpuPeriod  = 100_000       // microseconds
	// kernelThreads is how many threads of the machine a sandbox's kernel may
	// need besides those for the programs inside, and threadsPerTask how many
	// for each of these.
	kernelThreads  = 512
	threadsPerTask = 4
)

// newLimits makes the control groups of an owner's sandbox, which processes with the IDs may
// enter, and sets its limits. What it leaves when it fails is for remove.
func newLimits(g cgroups, id sandpit.ID, owner string, req limitsRequest, ids *sandboxIDs) (*limits, error) {
	l := &limits{groups: make(map[controller]string), kernel: req.Kernel}
	for _, c := range controllers {
		if parent := g.sandboxParent(c, owner); parent != "" {
			l.groups[c] = filepath.Join(parent, string(id))
		}
	}
	for _, dir := range l.dirs() {
		if err := g.makeSandboxGroup(dir); err != nil {
			return l, fmt.Errorf("create a control group: %w", err)
		}
		if err := ids.admit(dir); err != nil {
			return l, fmt.Errorf("create a control group: %w", err)
		}
	}
	l.background.Go(g.expectEntry)
	// These two are enforced by the sandbox's own kernel, whatever the machine.
	l.enforced.Disk, l.enforced.PIDs = req.Disk, req.PIDs
	for _, limit := range []struct {
		c      controller
		what   string
		wanted bool
		set    func() error
	}{
		{memoryController, "memory", req.Memory > 0, func() error { return l.setMemory(req.Memory) }},
		{cpuController, "CPU time", req.CPUs > 0, func() error { l.enforced.CPUs = req.CPUs; return nil }}, // see settle
		{pidsController, "the machine's threads", req.PIDs > 0, func() error { return l.setPIDs(req.PIDs) }},
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
		if limit.c != pidsController { // of these the sandbox's own kernel takes care
			l.notes = append(l.notes, limit.what+" is not limited here: "+g.Missing[limit.c])
		}
	}
	return l, nil
}

// EnforceableLimits returns those of limits that can be enforced for sandboxes of this
// process. It makes no control group.
func EnforceableLimits(limits sandpit.Resources) sandpit.Resources {
	plan, err := cgroupPlan("limits")
	if err != nil {
		return limits // creating a sandbox says why
	}
	return plan.enforceable(limits)
}

// CheckLimits returns an Unsupported error if one of limits cannot be enforced here, as
// creating a sandbox with it would, but before anything is fetched for that.
func CheckLimits(limits sandpit.Resources) error {
	plan, err := cgroupPlan("limits")
	if err != nil {
		return nil //nolint:nilerr // creating a sandbox says why
	}
	can := plan.enforceable(limits)
	if can.Memory != limits.Memory {
		return notEnforceable("memory", plan.Missing[memoryController])
	}
	if can.CPUs != limits.CPUs {
		return notEnforceable("CPU time", plan.Missing[cpuController])
	}
	return nil
}

// enforceable returns limits without those for which there is no control group.
func (g cgroups) enforceable(limits sandpit.Resources) sandpit.Resources {
	if g.dir(memoryController) == "" {
		limits.Memory = 0
	}
	if g.dir(cpuController) == "" {
		limits.CPUs = 0
	}
	return limits
}

func notEnforceable(what, why string) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unsupported, "%s cannot be limited on this machine: %s", what, why),
		limitsHint)
}

// limitsHint is what to do where control groups cannot be made.
const limitsHint = "run as root, or with systemd: systemd-run --user --scope -p Delegate=yes sandpit …; in a container make /sys/fs/cgroup writable"

func (l *limits) dirs() []string {
	var list []string
	for _, c := range controllers {
		if d := l.groups[c]; d != "" && !slices.Contains(list, d) {
			list = append(list, d)
		}
	}
	return list
}

// set writes to a file of a controller's group: the first name is that of
// version 1, the second that of version 2. An empty name is nothing to do.
func (l *limits) set(c controller, v1, v2, value string) error {
	name := v1
	if l.unified(c) {
		name = v2
	}
	if name == "" {
		return nil
	}
	return writeGroup(filepath.Join(l.groups[c], name), value)
}

// unified reports whether a controller's group is one of version 2.
func (l *limits) unified(c controller) bool {
	_, err := os.Stat(filepath.Join(l.groups[c], "cgroup.controllers"))
	return err == nil
}

// setMemory sets the limits described in memory.go.
func (l *limits) setMemory(bytes int64) error {
	l.enforced.Memory = bytes
	if err := l.holdMemory(l.firstLimit(), l.firstLimit()+memoryReserve); err != nil {
		l.enforced.Memory = 0
		return err
	}
	l.openEvents()
	return nil
}

// settle sets the limit of CPU time. That is done when the guest has answered and
// before any program runs: a kernel starts on several processors, and takes a
// third longer if it may not.
func (l *limits) settle() error {
	cpus := l.enforced.CPUs
	if cpus == 0 {
		return nil
	}
	quota := strconv.Itoa(int(math.Round(cpus * cpuPeriod)))
	period := strconv.Itoa(cpuPeriod)
	err := errors.Join(
		l.set(cpuController, "cpu.cfs_period_us", "", period),
		l.set(cpuController, "cpu.cfs_quota_us", "cpu.max", quota+l.onlyV2(" "+period)))
	if err != nil {
		return fmt.Errorf("limit CPU time: %w", err)
	}
	return nil
}

func (l *limits) onlyV2(text string) string {
	if l.unified(cpuController) {
		return text
	}
	return ""
}

func (l *limits) setPIDs(tasks int) error {
	return l.set(pidsController, "pids.max", "pids.max", strconv.Itoa(threadsPerTask*tasks+kernelThreads))
}

// write leaves what the sandbox's kernel process must know in its bundle.
func (l *limits) write(bundle string, ids *sandboxIDs) error {
	k := kernelLimits{Groups: l.dirs(), Memory: l.enforced.Memory, IDs: ids}
	if l.enforced.CPUs > 0 {
		k.CPUs = min(int(math.Ceil(l.enforced.CPUs)), runtime.NumCPU())
	}
	data, err := json.Marshal(k)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, limitsName), data, 0o644) //nolint:gosec // the directory is closed to others
}

// remove removes the groups; the sandbox's processes must have been killed.
func (l *limits) remove() error {
	l.background.Wait()
	l.dropEvents()
	var errs []error
	for _, dir := range l.dirs() {
		errs = append(errs, removeGroup(dir))
		removeOwnerGroup(dir)
	}
	return errors.Join(errs...)
}

// outOfMemory returns how many processes were killed because memory ran out.
func (l *limits) outOfMemory() (int64, error) {
	if l.groups[memoryController] == "" {
		return 0, nil
	}
	name := "memory.oom_control"
	if l.unified(memoryController) {
		name = "memory.events"
	}
	return readKey(filepath.Join(l.groups[memoryController], name), "oom_kill")
}

// enterLimits is the first thing that a kernel process or its file server does:
// it enters the sandbox's control groups, so that everything that it does and
// starts counts there.
func enterLimits(args []string) (kernelLimits, error) {
	var k kernelLimits
	bundle := argument(args, "--bundle")
	if bundle == "" {
		return k, nil // a helper for a moment, of a process that has entered
	}
	data, err := os.ReadFile(filepath.Join(bundle, limitsName)) //nolint:gosec // the arguments are the engine's
	if err != nil {
		return k, fmt.Errorf("read the limits: %w", err)
	}
	if err := json.Unmarshal(data, &k); err != nil {
		return k, fmt.Errorf("read the limits: %w", err)
	}
	if err := k.IDs.check(filepath.Base(args[0])); err != nil {
		return k, err
	}
	for _, dir := range k.Groups {
		if err := writeGroup(filepath.Join(dir, procsFile), "0"); err != nil {
			return k, fmt.Errorf("enter a control group: %w", err)
		}
	}
	return k, nil
}

// tell returns the arguments of a kernel process with what gVisor is to say to the
// programs inside.
func (k kernelLimits) tell(args []string) []string {
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

// spareProcessors is how many more processors the kernel process itself uses than
// the programs inside find. With a single one it stands still whenever it waits for
// the machine's kernel, 10 ms and more at a time when programs start. The limit of
// CPU time holds all the same.
func (k kernelLimits) spareProcessors() int {
	if k.CPUs == 0 {
		return 0
	}
	return max(0, min(2, runtime.NumCPU())-k.CPUs)
}

// minKernelHeap is how many bytes any kernel process may have of its own before it
// looks for garbage more often; one that does nothing takes far less.
const minKernelHeap = 32 << 20

// boundGarbage has the kernel process collect its garbage before it takes more than
// half of the sandbox's memory. What it keeps may need more; but memory that nobody
// uses any more must not be why a program is killed.
func (k kernelLimits) boundGarbage() {
	if k.Memory > 0 {
		debug.SetMemoryLimit(max(k.Memory/2, minKernelHeap))
	}
}

// argument returns the value of a flag in one of its two forms, or "".
func argument(args []string, flag string) string {
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
