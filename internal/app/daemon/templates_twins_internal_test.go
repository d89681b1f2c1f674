package daemon

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// TestTemplateTwins looks at what two sandboxes of one saved sandbox must have for
// themselves, and then at a program that is not to be saved.
func TestTemplateTwins(t *testing.T) {
	t.Parallel()
	_, _, c := templateServer(t)
	recipe := sandpit.Recipe{
		From: sandpit.Image(busyboxRoot(t)), Network: sandpit.NetworkPolicy{Online: true},
		Steps: []sandpit.RecipeStep{{Run: sandpit.ShellArgs("echo 0123456789abcdef0123456789abcdef > /etc/machine-id")}},
		Start: `busybox cat /proc/sys/kernel/random/uuid > /www/started; echo "$GIVEN" > /www/given; exec httpd -f -p 8000 -h /www`,
		Ready: sandpit.Ready{URL: "http://localhost:8000/given"},
	}
	anew := recipe
	anew.StartAnew = true
	for name, r := range map[string]sandpit.Recipe{"saved": recipe, "anew": anew} {
		b, log := buildTemplate(t, c, client.TemplateRequest{Name: name, Recipe: r})
		if b.Status != sandpit.BuildReady || (b.Snapshot == "") != r.StartAnew {
			t.Fatalf("%s: %+v\n%s", name, b, log)
		}
	}
	one := made(t, c, sandpit.Spec{Image: "template:saved", Hostname: "one"})
	two := made(t, c, sandpit.Spec{Image: "template:saved", Hostname: "two"})
	const asks = "busybox hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id"
	mine, yours := strings.Fields(shell(t, one, asks)), strings.Fields(shell(t, two, asks))
	if len(mine) != 3 || len(yours) != 3 || mine[0] != "one" || yours[0] != "two" {
		t.Fatalf("host name, machine and boot: %q and %q", mine, yours)
	}
	for i, name := range []string{"host name", "machine-id", "boot_id"} {
		if mine[i] == yours[i] || strings.HasPrefix(mine[i], "0123456789") {
			t.Errorf("%s: %q and %q", name, mine[i], yours[i])
		}
	}
	apart(t, one, two)
	if a, b := shell(t, one, "cat /www/started"), shell(t, two, "cat /www/started"); a != b {
		t.Errorf("the command was started again: %q and %q", a, b)
	}
	seen := map[string]bool{}
	for given, r := range map[string]client.CreateRequest{
		"environment": {Spec: sandpit.Spec{Env: map[string]string{"GIVEN": "environment"}}}, "secret": {Secrets: map[string]string{"GIVEN": "secret"}},
	} {
		r.Spec.Image = "template:anew"
		s, err := c.Sandboxes.Create(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		id := shell(t, s, "wget -qO- http://127.0.0.1:8000/started")
		if got := shell(t, s, "cat /www/given"); seen[id] || got != given {
			t.Errorf("started anew, %q has %q, in %q", given, got, id)
		}
		seen[id] = true
		gone(t, s)
	}
	gone(t, one, two)
}

func gone(t *testing.T, boxes ...*client.Sandbox) {
	t.Helper()
	for _, s := range boxes {
		if err := s.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// apart expects two sandboxes to have the same address, each for itself: what listens in
// one is not reached from the other.
func apart(t *testing.T, one, two *client.Sandbox) {
	t.Helper()
	const address = `busybox ip -o -4 addr show scope global | busybox awk '{ sub("/.*", "", $4); print $4 }'`
	mine, yours := shell(t, one, address), shell(t, two, address)
	if mine == "" || yours == "" {
		t.Fatalf("addresses: %q and %q", mine, yours)
	}
	shell(t, one, "echo one > /www/who; busybox httpd -p "+mine+":9000 -h /www")
	if got := shell(t, one, "wget -qO- http://"+mine+":9000/who"); got != "one" {
		t.Errorf("it reaches itself as %q", got)
	}
	if got := shell(t, two, "busybox timeout 5 wget -qO- http://"+mine+":9000/who || echo refused"); !strings.HasSuffix(got, "refused") {
		t.Errorf("one reaches the other: %q", got)
	}
}
