package gvisor_test

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// TestRulesHoldInRestoredKernels tries to break each limit and rule of a sandbox that was
// paused on disk, and of a copy: a kernel that was read has them from outside anew.
func TestRulesHoldInRestoredKernels(t *testing.T) {
	t.Parallel()
	host := machineAddr(t)
	api, open, closed := newAPIServer(t, host), serveEcho(t, host), serveEcho(t, host)
	p := newProviderWith(t, t.TempDir(), func(c *gvisor.Config) {
		c.Resolvers, c.Roots = []netip.AddrPort{serveNames(t, host)}, api.roots
	})
	port := strconv.Itoa(int(api.addr.Port()))
	limits := sandpit.Resources{PIDs: 60, Disk: 20 << 20}
	grouped := hasControlGroups(t, p)
	if grouped {
		limits.Memory, limits.CPUs = 128<<20, 0.5
	}
	box := create(t, p, sandpit.Spec{Resources: limits, Network: sandpit.NetworkPolicy{
		Online: true, Allow: []string{open.String(), api.addr.String(), "example.com"}, Inside: everywhere(),
		Headers: []sandpit.NetworkHeader{{Host: "example.com:" + port, Name: "Authorization", Value: "Bearer ${TOKEN}"}},
	}})
	snap := snapshotOf(t, box)
	suspend(t, box)
	resume(t, box)
	first := copyOf(t, p, snap)
	boxes := map[string]sandpit.Instance{"resumed": box, "copy of a copy": copyOf(t, p, snapshotOf(t, first))}
	stopOf(t, first) // its kernel is a new one then
	startOf(t, first)
	if got := statsOf(t, first); got.Limits != limits {
		t.Errorf("a copy that was started anew: %+v", got)
	}
	destroy(t, first)
	rules := map[string]func(*testing.T, sandpit.Instance){
		"processes": func(t *testing.T, b sandpit.Instance) { t.Helper(); expectProcessLimit(t, b, limits.PIDs) },
		"disk":      expectDiskLimit,
		"network": func(t *testing.T, b sandpit.Instance) {
			t.Helper()
			wantReached(t, b, open)
			wantRefused(t, b, closed)
			wantRefused(t, b, netip.MustParseAddrPort("169.254.169.254:80"))
		},
		"headers": func(t *testing.T, b sandpit.Instance) { t.Helper(); expectHeader(t, b, port) },
	}
	if grouped {
		rules["memory"] = expectMemoryLimit
		rules["CPU"] = func(t *testing.T, b sandpit.Instance) { t.Helper(); expectCPULimit(t, b, limits.CPUs) }
	}
	t.Run("rules", func(t *testing.T) {
		for who, b := range boxes {
			t.Run(who, func(t *testing.T) {
				t.Parallel()
				if got := statsOf(t, b).Limits; got != limits {
					t.Errorf("its limits are %+v, want %+v", got, limits)
				}
				for what, expect := range rules {
					t.Run(what, func(t *testing.T) { expect(t, b) })
				}
				if got := output(t, b, "echo alive"); got != "alive" {
					t.Errorf("afterwards: %q", got)
				}
			})
		}
	})
	for _, b := range boxes {
		destroy(t, b)
	}
}

// expectMemoryLimit has the guard kill the program that takes too much, and no other.
func expectMemoryLimit(t *testing.T, box sandpit.Instance) {
	t.Helper()
	bystander, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, status := try(t, box, "", hog); status.Code != 137 || !status.Signaled {
		t.Errorf("a program that takes all memory: %+v", status)
	}
	if err := bystander.Signal(t.Context(), sandpit.SIGKILL); err != nil {
		t.Errorf("the bystander: %v", err)
	}
}

func expectProcessLimit(t *testing.T, box sandpit.Instance, limit int) {
	t.Helper()
	// They all live until the last one was started, however long that takes.
	script := fmt.Sprintf("trap 'kill $all' EXIT; i=0; while [ $i -lt %d ]; do sleep 1000 & all=\"$all $!\"; i=$((i+1)); done; echo started all", 2*limit)
	if got, _ := try(t, box, "1000", script); strings.Contains(got, "started all") || !strings.Contains(got, "ork") {
		t.Errorf("%d processes: %q", 2*limit, got)
	}
	for range 500 { // until they are gone
		if got := output(t, box, "set -- /proc/[0-9]*; echo $#"); len(got) == 1 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Error("they do not end")
}

func expectDiskLimit(t *testing.T, box sandpit.Instance) {
	t.Helper()
	if got, _ := try(t, box, "", "dd if=/dev/zero of=/workspace/x bs=1M count=100 2>&1; rm -f /workspace/x"); !strings.Contains(got, "No space left") {
		t.Errorf("fill the disk: %q", got)
	}
}

func expectCPULimit(t *testing.T, box sandpit.Instance, cpus float64) {
	t.Helper()
	busy, err := box.Guest().Start(t.Context(), sandpit.Command{Args: []string{"sh", "-c", "while :; do :; done & while :; do :; done"}})
	if err != nil {
		t.Fatal(err)
	}
	before := statsOf(t, box)
	time.Sleep(time.Second)
	after := statsOf(t, box)
	if share := float64(after.CPU-before.CPU) / float64(after.At.Sub(before.At)); share > 1.4*cpus || share == 0 {
		t.Errorf("two busy programs use %.2f of a processor, want at most %g", share, cpus)
	}
	if err := busy.Signal(t.Context(), sandpit.SIGKILL); err != nil {
		t.Error(err)
	}
}

// expectHeader checks that a host gets a secret that no program inside knows, and is trusted.
func expectHeader(t *testing.T, box sandpit.Instance, port string) {
	t.Helper()
	if err := box.(sandpit.NetworkSecreter).SetNetworkSecrets(t.Context(), map[string]string{"TOKEN": apiSecret}); err != nil {
		t.Fatal(err)
	}
	out := output(t, box, "curl -sS https://example.com:"+port+"/ 2>&1 || true")
	if strings.Contains(out, "not found") {
		testengine.Skip(t, "there is no curl: %s", out)
	}
	if !strings.HasPrefix(out, "welcome by HTTP/") {
		t.Errorf("got %q", out)
	}
}
