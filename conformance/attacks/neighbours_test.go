package attacks_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

func neighbourAttacks() []attack {
	return []attack{
		{name: "abstract-sockets", as: anybody, in: everybox, judge: judgeAbstract, proves: "Abstract sockets of the machine and of other sandboxes are out of reach."},
		{name: "system-v", as: anybody, in: everybox, judge: refused("shared memory by", "shared memory 0"), proves: "Shared memory, semaphores and messages (System V) are each sandbox's own."},
		{name: "message-queues", as: anybody, in: everybox, judge: refused("make ", "remove "), proves: "Message queues are each sandbox's own, if there are any."},
		{name: "shared-memory", as: anybody, in: everybox, judge: judgeShared, proves: "/dev/shm, /tmp and the like are each sandbox's own."},
		{name: "keyrings", as: anybody, in: everybox, judge: judgeKeys, proves: "Keys kept by a kernel are not the machine's, nor another sandbox's."},
		{name: "see-processes", as: anybody, in: everybox, judge: refused("read /proc/"), proves: "Processes of the machine and of other sandboxes are not seen."},
		{name: "signal-others", as: anybody, in: everybox, count: 10000, long: 200000, judge: judgeSignals, proves: "No signal, trace, priority or limit reaches a process outside."},
		{name: "tcp", as: anybody, in: everybox, judge: refused(), proves: "No server of the machine or of another sandbox can be connected to, on any of its addresses."},
		{name: "udp", as: anybody, in: everybox, proves: "No packet reaches the machine or another sandbox."},
		{name: "multicast", as: anybody, in: everybox, proves: "Broadcast and multicast packets reach no other sandbox and not the machine."},
		{name: "raw-packets", as: anybody, in: everybox, judge: refusedToUser(), proves: "Hand-made packets with false senders arrive nowhere, and packets of others are not visible."},
		{
			name: "socket-families", as: anybody, in: everybox, judge: judgeFamilies,
			proves: "There are Internet, Unix, netlink and packet sockets only: none to a hypervisor, to the kernel's ciphers or to other devices.",
		},
		{name: "netlink", as: anybody, in: everybox, judge: judgeNetlink, proves: "The machine's kernel cannot be talked to by netlink."},
		{name: "interfaces", as: anybody, in: everybox, judge: judgeInterfaces, proves: "Taking down the network is the sandbox's own affair."},
	}
}

func judgeAbstract(t *testing.T, s scene) {
	t.Helper()
	refused("list", "descriptors in a loop")(t, s)
	for _, step := range s.steps {
		if step.Try == "list" && strings.Contains(step.Got, s.lab.handle) {
			t.Errorf("sockets of others are listed: %s", step.Got)
		}
	}
}

func judgeShared(t *testing.T, s scene) {
	t.Helper()
	refused("list ", "leave something")(t, s)
	if left, _ := filepath.Glob("/dev/shm/left-*"); len(left) > 0 {
		t.Errorf("on the machine: %v", left)
	}
}

func judgeKeys(t *testing.T, s scene) {
	t.Helper()
	keys, _ := readAll("/proc/keys") // not every machine has it
	if bytes.Contains(keys, []byte("attack-"+s.mark)) {
		t.Errorf("keys on the machine:\n%s", keys)
	}
	for _, step := range s.steps {
		if strings.HasPrefix(step.Try, "search") && step.Err == "" {
			t.Errorf("%s found %s", step.Try, step.Got)
		}
	}
}

// judgeSignals knows that a process of the machine may have a number that is in
// use inside as well; what it got is looked at outside.
func judgeSignals(t *testing.T, s scene) {
	t.Helper()
	for _, step := range s.steps {
		if step.Err == "" && !strings.HasPrefix(step.Try, "control: ") {
			t.Logf("%s hit another program inside", step.Try)
		}
	}
}

func judgeFamilies(t *testing.T, s scene) {
	t.Helper()
	known := map[int]bool{unix.AF_UNIX: true, unix.AF_INET: true, unix.AF_INET6: true, unix.AF_NETLINK: true, unix.AF_PACKET: true}
	for _, step := range s.steps {
		family, err := strconv.Atoi(step.Got)
		if step.Err != "" {
			continue
		}
		if err != nil || !known[family] || (family == unix.AF_PACKET && s.who == user) {
			t.Errorf("a socket of the kind %s: %s", step.Try, step.Got)
		}
	}
}

func judgeNetlink(t *testing.T, s scene) {
	t.Helper()
	for _, step := range s.steps {
		if step.Got != strconv.Itoa(unix.NETLINK_ROUTE) && step.Got != strconv.Itoa(unix.NETLINK_KOBJECT_UEVENT) &&
			step.Got != strconv.Itoa(unix.NETLINK_NETFILTER) {
			t.Errorf("netlink %s", step.Try)
		}
	}
}

func judgeInterfaces(t *testing.T, s scene) {
	t.Helper()
	for _, step := range s.steps {
		if step.Try == "which there are" && strings.TrimSpace(step.Got) != "lo" && step.Err == "" {
			t.Errorf("there are %q", step.Got)
		}
	}
	dialer, ok := s.lab.neighbour.(sandpit.Dialer)
	if !ok {
		t.Fatal("no raw connections")
	}
	conn, err := dialer.Dial(t.Context(), neighbourPort)
	if err != nil {
		t.Fatalf("the neighbour's network: %v", err)
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, "control")
	if got, err := io.ReadAll(conn); err != nil || string(got) != s.lab.name {
		t.Errorf("the neighbour answers %q, %v", got, err)
	}
	// Packets go to the sandbox's loopback again, for the attempts to come.
	if s.who == root {
		delete(s.lab.boxes, s.place)
		if err := s.box.Destroy(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// whileHeld starts the attacker, waits until it says that it is where it wants
// to be, and calls f. Then it lets the attacker end and reads what it reports.
func (s scene) whileHeld(t *testing.T, name string, f func(ctx context.Context)) []step {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), attackTime)
	defer cancel()
	in, hold := io.Pipe()
	defer hold.Close()
	said := &signalBuffer{said: make(chan struct{})}
	p, err := s.box.Guest().Start(ctx, sandpit.Command{
		Args: []string{programPath, name, s.params(t)}, User: s.user(), Dir: "/tmp", Timeout: attackTime, Stdin: in, Stdout: said, Stderr: said,
	})
	if err != nil {
		t.Errorf("start: %v", err)
		return nil
	}
	select {
	case <-said.said:
		f(ctx)
	case <-ctx.Done():
		t.Errorf("the attacker says nothing")
	}
	_ = hold.Close()
	if status, err := p.Wait(ctx); (err != nil || status.Code != 0) && !s.mortal {
		t.Errorf("the attacker did not get to its end: %v, %v\n%.1000s", status, err, said.text())
		return nil
	}
	return s.decode(t, []byte(said.text()))
}

// signalBuffer keeps what is written and tells when there is something.
type signalBuffer struct {
	mu   sync.Mutex
	kept bounded
	once sync.Once
	said chan struct{}
}

func (b *signalBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, err := b.kept.Write(p)
	b.once.Do(func() { close(b.said) })
	return n, err
}

func (b *signalBuffer) text() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.kept.String()
}

// dial opens a raw connection to a port inside.
func (s scene) dial(ctx context.Context, t *testing.T, port int) net.Conn {
	t.Helper()
	dialer, ok := s.box.(sandpit.Dialer)
	if !ok {
		t.Fatal("no raw connections")
	}
	conn, err := dialer.Dial(ctx, port)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(attackTime))
	return conn
}
