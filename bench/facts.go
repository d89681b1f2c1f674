package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine describes the hardware and software of a run. Facts that cannot be determined are
// "unknown".
type machine struct {
	Date       string  `json:"date"`
	Commit     string  `json:"commit"`
	CPU        string  `json:"cpu"`
	Cores      int     `json:"cores"`
	Memory     float64 `json:"memory_gb"`
	Kernel     string  `json:"kernel"`
	Cgroup     string  `json:"cgroup"`
	Virtual    string  `json:"virtual"`
	Go         string  `json:"go"`
	GVisor     string  `json:"gvisor"`
	Docker     string  `json:"docker"`
	Guest      string  `json:"guest"`
	RootFS     string  `json:"root_fs"`
	Host       string  `json:"host"`
	LoadBefore string  `json:"load_at_start"`
	LoadAtEnd  string  `json:"load_at_end"`
}

const unknown = "unknown"

func readMachine(ctx context.Context) machine {
	m := machine{
		Date:       time.Now().UTC().Format("2006-01-02 15:04 MST"),
		Commit:     commit(ctx),
		CPU:        cpuModel(),
		Cores:      runtime.NumCPU(),
		Kernel:     kernel(),
		Cgroup:     cgroupVersion(),
		Virtual:    virtualization(),
		Go:         runtime.Version(),
		GVisor:     moduleVersion("gvisor.dev/gvisor"),
		Docker:     "none",
		Guest:      "played by the main program (go generate ./internal/inside/guestbin makes a smaller one)",
		Host:       "not measured",
		LoadBefore: loadAverage(),
	}
	if smallGuest() {
		m.Guest = "the small one"
	}
	if total, err := kilobytes("/proc/meminfo", "MemTotal"); err == nil {
		m.Memory = float64(total) / 1e9
	}
	return m
}

// facts returns the machine as lines for a reader.
func (m machine) facts() [][2]string {
	return [][2]string{
		{"date", m.Date},
		{"commit", m.Commit},
		{"processor", fmt.Sprintf("%s, %d cores, %.1f GB of memory", m.CPU, m.Cores, m.Memory)},
		{"virtualization", m.Virtual},
		{"kernel", m.Kernel + ", " + m.Cgroup},
		{"load average", m.LoadBefore + " at the start, " + m.LoadAtEnd + " at the end"},
		{"sandpit", fmt.Sprintf("gVisor %s, %s, guest: %s", m.GVisor, m.Go, m.Guest)},
		{"Docker", m.Docker},
		{"host", m.Host},
		{"root file system", m.RootFS},
	}
}

func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=12", "HEAD").Output()
	if err != nil {
		return unknown
	}
	id := strings.TrimSpace(string(out))
	changed, err := exec.CommandContext(ctx, "git", "status", "--porcelain", "--", "*.go", "go.mod").Output()
	if err != nil || len(changed) > 0 {
		id += ", changed"
	}
	return id
}

func cpuModel() string { return cpuinfo("model name") }

// cpuinfo returns the first value of a key in /proc/cpuinfo.
func cpuinfo(key string) string {
	f, err := os.Open("/proc/cpuinfo")
	if err != nil {
		return unknown
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ":")
		if strings.TrimSpace(name) == key {
			return strings.TrimSpace(value)
		}
	}
	return unknown
}

func kernel() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return unknown
	}
	return unix.ByteSliceToString(u.Sysname[:]) + " " + unix.ByteSliceToString(u.Release[:])
}

func cgroupVersion() string {
	var st unix.Statfs_t
	if err := unix.Statfs("/sys/fs/cgroup", &st); err != nil {
		return "no cgroups"
	}
	if st.Type == unix.CGROUP2_SUPER_MAGIC {
		return "cgroup v2"
	}
	return "cgroup v1"
}

func virtualization() string {
	text := "not seen"
	for flag := range strings.FieldsSeq(cpuinfo("flags")) {
		if flag == "hypervisor" {
			text = "a virtual machine"
		}
	}
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return text + ", no /dev/kvm"
	}
	return text + ", /dev/kvm is there (sandpit does not use it)"
}

// moduleVersion returns the version of a module that is linked into this
// program.
func moduleVersion(path string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return unknown
	}
	for _, dep := range info.Deps {
		if dep.Path == path {
			return dep.Version
		}
	}
	return unknown
}

func loadAverage() string {
	data, err := os.ReadFile("/proc/loadavg")
	if fields := strings.Fields(string(data)); err == nil && len(fields) > 0 {
		return fields[0]
	}
	return unknown
}

// dockerFacts describes the daemon.
func dockerFacts(ctx context.Context) string {
	out, err := dockerOutput(ctx, "info", "--format", "{{.ServerVersion}}, {{.Driver}}, {{.DefaultRuntime}}")
	if err != nil {
		return unknown
	}
	client, err := dockerOutput(ctx, "version", "--format", "{{.Client.Version}}")
	if err != nil {
		return out
	}
	return out + ", client " + client
}
