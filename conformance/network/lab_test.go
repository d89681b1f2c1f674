package network_test

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// patience is how long anything may take on a busy machine.
const patience = 2 * time.Minute

// lab is an engine whose gateways are in the world of the test.
type lab struct {
	world    *world
	provider *gvisor.Provider
	probe    string
}

func newLab(t *testing.T, outside place) *lab {
	t.Helper()
	l := &lab{world: newWorld(t, outside)}
	dir := t.TempDir()
	for _, sub := range []string{"run", "scratch", "images"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	l.probe = filepath.Join(t.TempDir(), "probe")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", l.probe, "./testdata/probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the probe: %v\n%s", err, out)
	}
	images, err := image.Open(filepath.Join(dir, "images"), image.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l.provider, err = gvisor.New(gvisor.Config{
		RuntimeDir: filepath.Join(dir, "run"), ScratchDir: filepath.Join(dir, "scratch"), Images: images, Engine: testengine.Path(t),
		Defaults: testengine.Limits(), Resolvers: []netip.AddrPort{netip.MustParseAddrPort("127.0.0.1:53")},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.provider.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return l
}

// box is a sandbox that asks.
type box struct {
	sandpit.Instance
	*lab
}

// box makes an online sandbox that lives as long as the test.
func (l *lab) box(t *testing.T, p sandpit.NetworkPolicy) *box {
	t.Helper()
	p.Online = true
	made, err := l.provider.Create(t.Context(), sandpit.NewID(), sandpit.Spec{
		Network: p, Mounts: []sandpit.Mount{{Source: l.probe, Target: "/probe", ReadOnly: true}},
	})
	if err != nil {
		t.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), patience)
		defer cancel()
		if err := made.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return &box{made, l}
}

// try runs the probe and returns its one line.
func (b *box) try(t *testing.T, args ...string) string {
	t.Helper()
	b.world.forget()
	var out bytes.Buffer
	p, err := b.Guest().Start(t.Context(), sandpit.Command{Args: append([]string{"/probe"}, args...), Stdout: &out, Stderr: &out, Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(t.Context()); err != nil || status.Code != 0 {
		t.Fatalf("probe %q: %v, %v\n%s", args, status, err, &out)
	}
	return strings.TrimSpace(out.String())
}

// wantReached tries "tcp ADDRESS" and the like.
func (b *box) wantReached(t *testing.T, attempts ...string) {
	t.Helper()
	for _, a := range attempts {
		if got := b.try(t, strings.Fields(a)...); got != "yes" {
			t.Errorf("%s: %s, want it reached; %+v", a, got, b.log(t))
		}
	}
}

// wantRefused expects that no server receives an attempt, and that the log says why.
func (b *box) wantRefused(t *testing.T, reason string, attempts ...string) {
	t.Helper()
	for _, a := range attempts {
		args := strings.Fields(a)
		proto, addr := args[0], args[1]
		if proto == "udp" || proto == "ping" {
			args = append(args, "soon")
		}
		if got := b.try(t, args...); !strings.HasPrefix(got, "no: ") {
			t.Errorf("%s: %s, want it refused", a, got)
		}
		switch proto {
		case "ping":
			proto = "icmp"
			addr = netip.MustParseAddr(addr).String()
		case "udp":
			addr = netip.MustParseAddrPort(addr).String()
		default:
			proto = "tcp"
			addr = netip.MustParseAddrPort(addr).String()
		}
		if b.world.hears(proto, addr) {
			t.Errorf("%s: it was heard outside", a)
		}
		b.wantLogged(t, proto, addr, reason)
	}
}

func (b *box) wantLogged(t *testing.T, proto, addr, reason string) {
	t.Helper()
	decided := func(d sandpit.NetworkDecision) bool {
		return d.Protocol == proto && d.Address == addr && !d.Allowed && strings.HasPrefix(d.Reason, reason)
	}
	for end := time.Now().Add(patience); !slices.ContainsFunc(b.log(t), decided); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%s %s: not refused because %q: %+v", proto, addr, reason, b.log(t))
			return
		}
	}
}

// becomes waits until an attempt comes to something: what was before may still be ending.
func (b *box) becomes(t *testing.T, want string, args ...string) {
	t.Helper()
	got := b.try(t, args...)
	for end := time.Now().Add(patience); got != want && time.Now().Before(end); got = b.try(t, args...) {
		time.Sleep(50 * time.Millisecond)
	}
	if got != want {
		t.Errorf("%q: %s, want %s", args, got, want)
	}
}

func (b *box) log(t *testing.T) []sandpit.NetworkDecision {
	t.Helper()
	logger, ok := b.Instance.(sandpit.NetworkLogger)
	if !ok {
		t.Fatal("there is no network log")
	}
	list, err := logger.NetworkLog(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// set replaces the rules.
func (b *box) set(t *testing.T, p sandpit.NetworkPolicy) {
	t.Helper()
	policer, ok := b.Instance.(sandpit.NetworkPolicer)
	if !ok {
		t.Fatal("rules cannot be replaced")
	}
	p.Online = true
	if err := policer.SetNetworkPolicy(t.Context(), p); err != nil {
		t.Fatal(err)
	}
}
