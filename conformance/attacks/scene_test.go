package attacks_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

const (
	attackTime = 40 * time.Second
	aliveTime  = 15 * time.Second
	maxOutput  = 32 << 20
)

// params are the parameters of the attacker; see testdata/attacker/main.go.
type params struct {
	Canary    string   `json:"canary"`
	SecretDir string   `json:"secretDir"`
	Control   string   `json:"control"`
	Abstract  []string `json:"abstract"`
	TCP       []string `json:"tcp"`
	UDP       []string `json:"udp"`
	PIDs      []int    `json:"pids"`
	Key       int      `json:"key"`
	Name      string   `json:"name"`
	Count     int      `json:"count"`
	Seed      uint64   `json:"seed"`
}

// step is what came of one step.
type step struct {
	Try string `json:"try"`
	Err string `json:"err"`
	Got string `json:"got"`
}

// scene is one attempt in one place as one user.
type scene struct {
	lab   *lab
	box   sandpit.Instance
	place audience
	who   audience
	count int
	mark  string // of this scene's files in the writable mount
	// mortal allows the attacker not to get to its end.
	mortal bool
	steps  []step
}

// user is the user to run as.
func (s scene) user() string {
	if s.who == user {
		return ordinary
	}
	return "0"
}

// attack makes an attempt and looks around afterwards.
func (l *lab) attack(t *testing.T, a attack, place, who audience) {
	t.Helper()
	if a.leaves && who == user && os.Geteuid() != 0 {
		t.Skip("the engine of an ordinary user lets only root of the sandbox write to a mount")
	}
	s := scene{lab: l, box: l.box(t, place), place: place, who: who, count: a.count, mark: a.name + "-" + who.names()[0]}
	if isLong() && a.long > 0 {
		s.count = a.long
	}
	if a.play != nil {
		a.play(t, s)
	} else {
		s.steps = s.attempt(t, a)
	}
	if a.judge != nil {
		a.judge(t, s)
	}
	l.expectUnharmed(t)
	l.expectAlive(t, place, a.mortal)
	weak := l.weak
	l.weak = nil
	if len(weak) > 0 && a.weakness == "" {
		t.Errorf("a weakness: %q", weak)
	}
	if len(weak) > 0 && !t.Failed() {
		t.Skipf("known weakness: %s\n%q", a.weakness, weak)
	}
	if t.Failed() && testing.Verbose() {
		for _, step := range s.steps[:min(len(s.steps), 100)] {
			t.Logf("%s: %s %.100q", step.Try, step.Err, step.Got)
		}
	}
}

func (s scene) params(t *testing.T) string {
	t.Helper()
	l := s.lab
	data, err := json.Marshal(params{
		Canary: l.canaryPath(), SecretDir: filepath.Join(l.dir, "secret"), Control: l.control(t), Abstract: []string{"machine-" + l.handle, "neighbour-" + l.handle},
		TCP: l.tcp, UDP: l.udp, PIDs: append([]int{l.canaryProcess.Process.Pid, os.Getpid()}, l.engines...), Key: l.key,
		Name: s.mark, Count: s.count, Seed: uint64(time.Now().UnixNano()),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// attempt has the attacker make the attempt, and checks what goes for all.
func (s scene) attempt(t *testing.T, a attack) []step {
	t.Helper()
	limit := attackTime
	if isLong() {
		limit *= 10
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var out, diagnostics bounded
	p, err := s.box.Guest().Start(ctx, sandpit.Command{
		Args: []string{programPath, a.name, s.params(t)}, User: s.user(), Dir: "/tmp", Timeout: limit,
		Stdout: &out, Stderr: &diagnostics,
	})
	if err != nil {
		t.Errorf("start: %v", err)
		return nil
	}
	status, err := p.Wait(ctx)
	if err != nil || status.Code != 0 {
		if a.mortal {
			return nil
		}
		t.Errorf("the attacker did not get to its end: %v, %v\n%.2000s\n%.2000s", status, err, &out, &diagnostics)
		return nil
	}
	return s.decode(t, out.Bytes())
}

// decode reads what the attacker reports and checks what goes for all attempts.
func (s scene) decode(t *testing.T, out []byte) []step {
	t.Helper()
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	var steps []step
	if err := json.Unmarshal(lines[len(lines)-1], &steps); err != nil {
		t.Errorf("the attacker reports %.500q: %v", out, err)
		return nil
	}
	if len(steps) == 0 {
		t.Error("the attacker tried nothing")
	}
	for _, step := range steps {
		if strings.HasPrefix(step.Try, "control: ") && step.Err != "" {
			t.Errorf("%s: %s: so the attempt proves nothing", step.Try, step.Err)
		}
		if step.Err == "HANGS" || strings.HasPrefix(step.Err, "neither ") {
			t.Logf("%s: %s", step.Try, step.Err)
		}
		s.expectNoSecret(t, step)
	}
	return steps
}

func (s scene) expectNoSecret(t *testing.T, step step) {
	t.Helper()
	if step.Got == "" {
		return
	}
	secrets := []string{s.lab.canary, s.lab.name}
	for _, token := range s.lab.tokens(t) {
		secrets = append(secrets, token)
	}
	for _, secret := range secrets {
		if strings.Contains(step.Got, secret) {
			t.Errorf("%s: a secret came out: %.1000q", step.Try, step.Got)
		}
	}
}

// bounded is a buffer that takes no more than it should.
type bounded struct{ bytes.Buffer }

func (b *bounded) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxOutput {
		return 0, errors.New("too much output")
	}
	return b.Buffer.Write(p)
}

// refused judges that no step got anywhere, but for those whose names begin as
// given.
func refused(except ...string) func(t *testing.T, s scene) {
	return func(t *testing.T, s scene) {
		t.Helper()
		for _, step := range s.steps {
			if step.Err == "" && !beginsAs(step.Try, append(except, "control: ")) {
				t.Errorf("%s worked: %.200q", step.Try, step.Got)
			}
		}
	}
}

// refusedToUser judges as refused does, where an ordinary user tried: root may
// do as root likes, in its own sandbox.
func refusedToUser(except ...string) func(t *testing.T, s scene) {
	return func(t *testing.T, s scene) {
		t.Helper()
		if s.who == user {
			refused(except...)(t, s)
		}
	}
}

func beginsAs(name string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(name, p) {
			return true
		}
	}
	return false
}

// observation is what must stay as it is.
type observation struct {
	Files    map[string]string // of the machine
	Settings map[string]string
	Alive    map[int]bool
	Memory   string
	// Offset is by how much the clock differs from one that cannot be set.
	Offset time.Duration
}

// sameOffset compares clocks: an attacker that sets one changes it by more than the time between two readings.
var sameOffset = cmp.Comparer(func(a, b time.Duration) bool { return (a - b).Abs() < 30*time.Second })

// settings are those of the machine's kernel that attackers go for.
var settings = []string{
	"/proc/sys/kernel/hostname", "/proc/sys/kernel/domainname", "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe",
	"/proc/sys/kernel/sysrq", "/proc/sys/kernel/panic", "/proc/sys/kernel/randomize_va_space", "/proc/sys/vm/overcommit_memory",
	"/proc/sys/fs/file-max", "/proc/sys/kernel/pid_max", "/proc/sys/net/ipv4/ip_forward", "/proc/sys/fs/suid_dumpable",
	"/proc/sys/kernel/random/boot_id", "/proc/swaps", "/proc/sys/kernel/dmesg_restrict", "/proc/sys/kernel/ctrl-alt-del",
	"/proc/sys/kernel/acct", "/sys/kernel/uevent_helper", "/sys/kernel/kexec_loaded", "/proc/sys/kernel/unprivileged_bpf_disabled",
}

func (l *lab) observe(t *testing.T) observation {
	t.Helper()
	o := observation{Files: make(map[string]string), Settings: make(map[string]string), Alive: make(map[int]bool)}
	for _, dir := range []string{"secret", "ro"} {
		err := filepath.WalkDir(filepath.Join(l.dir, dir), func(path string, _ fs.DirEntry, err error) error {
			o.Files[path] = describe(path)
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for _, path := range []string{"/usr/bin", "/usr/bin/env", "/etc/passwd", "/etc/shadow", l.dir, l.control(t)} {
		o.Files[path] = describe(path)
	}
	for _, name := range settings {
		text, _ := os.ReadFile(name) // not every machine has all
		o.Settings[name] = string(text)
	}
	o.Settings["/proc/swaps"] = swapAreas(o.Settings["/proc/swaps"])
	var real, boot unix.Timespec
	if err := errors.Join(unix.ClockGettime(unix.CLOCK_REALTIME, &real), unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot)); err != nil {
		t.Error(err)
	}
	o.Offset = time.Duration(real.Nano() - boot.Nano())
	for _, pid := range append([]int{l.canaryProcess.Process.Pid}, l.engines...) {
		o.Alive[pid] = isAlive(pid)
	}
	memory, err := unix.SysvShmAttach(l.segment, 0, unix.SHM_RDONLY)
	if err == nil {
		o.Memory = string(memory[:len(l.canary)])
		_ = unix.SysvShmDetach(memory)
	}
	return o
}

// swapAreas returns the names of swap areas from their table, without how much of each is used.
func swapAreas(table string) string {
	var names []string
	for line := range strings.Lines(table) {
		name, _, _ := strings.Cut(line, " ")
		names = append(names, name)
	}
	return strings.Join(names, "\n")
}

// isAlive reports whether a process lives and is not held.
func isAlive(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return err == nil && !bytes.Contains(status, []byte("\nState:\tZ")) && !bytes.Contains(status, []byte("\nState:\tT"))
}

// describe says all that an attacker could change of a file.
func describe(path string) string {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return err.Error()
	}
	text := fmt.Sprintf("mode %o owner %d:%d links %d size %d changed %d.%d", st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Ctim.Sec, st.Ctim.Nsec)
	if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size < 1<<20 {
		content, err := os.ReadFile(path)
		sum := sha256.Sum256(content)
		text += fmt.Sprintf(" %s %v", hex.EncodeToString(sum[:8]), err)
	}
	return text
}

// expectUnharmed checks all other sandboxes.
func (l *lab) expectUnharmed(t *testing.T) {
	t.Helper()
	if diff := cmp.Diff(l.before, l.observe(t), sameOffset); diff != "" {
		t.Errorf("others were harmed:\n%s", diff)
		l.before = l.observe(t) // the next one is not to blame
	}
	if heard := l.heard.take(); len(heard) > 0 {
		t.Errorf("the machine's sockets heard %q", heard)
	}
	if said := l.said.take(); len(said) > 0 {
		t.Errorf("the neighbour tells of %q", said)
	}
}

// expectAlive looks at the sandbox that was attacked from. One that is allowed
// to end must have ended in an orderly way; there will be a new one.
func (l *lab) expectAlive(t *testing.T, place audience, mortal bool) {
	t.Helper()
	box := l.boxes[place]
	if box == nil {
		return // the attempt has dealt with it
	}
	ctx, cancel := context.WithTimeout(t.Context(), aliveTime)
	defer cancel()
	got, err := output(ctx, box, "echo alive")
	if got == "alive" && err == nil && !mortal {
		return
	}
	for sandpit.CodeOf(err) == sandpit.Unavailable && ctx.Err() == nil { // it is ending
		time.Sleep(50 * time.Millisecond)
		got, err = output(ctx, box, "echo alive")
	}
	delete(l.boxes, place)
	code := sandpit.CodeOf(err)
	if err != nil {
		t.Logf("the sandbox answers %q, %v (%s)", got, err, code)
	}
	if !mortal {
		t.Error("the sandbox does not answer any more, and may not have ended by this")
	}
	if code == sandpit.Gone {
		exit, err := box.Wait(ctx)
		if err != nil || exit.Reason == "" {
			t.Errorf("wait: %+v, %v", exit, err)
		}
		t.Logf("the sandbox has ended: %+v", exit)
	}
	// One that has spoiled its own files is of no use for the next attempt.
	end, stop := context.WithTimeout(context.WithoutCancel(t.Context()), aliveTime)
	defer stop()
	if err := box.Destroy(end); err != nil {
		t.Errorf("destroy: %v", err)
	}
}

// output runs a shell script and returns what it prints.
func output(ctx context.Context, box sandpit.Instance, script string) (string, error) {
	var out bounded
	p, err := box.Guest().Start(ctx, sandpit.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		return "", err
	}
	status, err := p.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		return "", err // the program may still write
	}
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("%v", status)
	}
	return strings.TrimSpace(out.String()), err
}

// expectCalm looks, after a group of attempts, at the neighbour and at what is
// held.
func (l *lab) expectCalm(t *testing.T) {
	t.Helper()
	sum, err := os.ReadFile(filepath.Join(string(l.image), "bin", "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	digest := sha256.Sum256(sum)
	got, err := output(t.Context(), l.neighbour, "echo alive; hostname; date +%s; sha256sum </bin/busybox; cat /dev/shm/neighbour; ls /tmp")
	lines := strings.Split(got, "\n")
	if err != nil || len(lines) != 6 {
		t.Fatalf("the neighbour: %q, %v", got, err)
	}
	now, err := strconv.ParseInt(lines[2], 10, 64)
	if behind := time.Now().Unix() - now; err != nil || behind < -60 || behind > 60 {
		t.Errorf("the neighbour's clock: %s, %v", lines[2], err)
	}
	lines[2], lines[3] = "", strings.TrimSuffix(lines[3], "  -")
	want := []string{"alive", "neighbour", "", hex.EncodeToString(digest[:]), l.name + "attacker", "neighbour"}
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Errorf("the neighbour:\n%s", diff)
	}
	t.Logf("AFTER\n%s", strings.Join(descriptorsOf(l.engines), "\n"))
	l.expectHeld(t, l.holding)
}

// expectHeld expects the engine to hold no more than it held before, as soon as what is ending has ended.
func (l *lab) expectHeld(t *testing.T, before resources) {
	t.Helper()
	var held resources
	for end := time.Now().Add(aliveTime); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		runtime.GC() // files without an owner
		if held = resourcesOf(l.engines); !held.exceeds(before) {
			return
		}
	}
	t.Errorf("held before %+v, now %+v:\n%s", before, held, strings.Join(descriptorsOf(l.engines), "\n"))
}

// resources are what the engine holds.
type resources struct{ descriptors, processes int }

func resourcesOf(engine []int) (r resources) {
	r.descriptors = len(descriptorsOf(engine))
	for _, pid := range engine {
		for _, child := range children(pid) {
			if args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child)); len(args) > 0 {
				r.processes++
			}
		}
	}
	return r
}

// descriptorsOf lists what the engine's descriptors are, without those of processes: gVisor
// leaves them to the engine's garbage collector, so their number varies.
func descriptorsOf(engine []int) (list []string) {
	for _, pid := range engine {
		dir := fmt.Sprintf("/proc/%d/fd", pid)
		fds, _ := os.ReadDir(dir) // not readable by other users
		for _, fd := range fds {
			target, err := os.Readlink(filepath.Join(dir, fd.Name()))
			if err == nil && target != "anon_inode:[pidfd]" { // an error: closed since
				list = append(list, fmt.Sprintf("%d %s %s", pid, fd.Name(), target))
			}
		}
	}
	return list
}

func (r resources) exceeds(other resources) bool {
	return r.descriptors > other.descriptors+4 || r.processes > other.processes
}
