package daytona_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/daytona"
)

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	t.Cleanup(cancel)
	return ctx
}

// create creates a sandbox and destroys it when the test ends.
func create(t *testing.T, p *daytona.Provider, spec sandpit.Spec) *daytona.Instance {
	t.Helper()
	made, err := p.Create(within(t), sandpit.NewID(), spec)
	if err != nil {
		t.Fatalf("create: %v (hint: %s)", err, sandpit.HintOf(err))
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		if err := made.Destroy(ctx); err != nil {
			t.Errorf("destroy: %v", err)
		}
	})
	return made.(*daytona.Instance) //nolint:forcetypeassert // the provider makes no other
}

// shell runs a script in a sandbox and returns what it prints.
func shell(t *testing.T, box sandpit.Instance, script string) string {
	t.Helper()
	var out strings.Builder
	p, err := box.Guest().Start(within(t), sandpit.Command{Args: []string{"sh", "-c", script}, Stdout: &out, Stderr: &out})
	if err != nil {
		t.Fatalf("%s: %v", script, err)
	}
	if status, err := p.Wait(within(t)); err != nil || status.Code != 0 {
		t.Fatalf("%s: %s, %v: %s", script, status, err, out.String())
	}
	return out.String()
}

func wantCode(t *testing.T, err error, want sandpit.Code) {
	t.Helper()
	if got := sandpit.CodeOf(err); got != want {
		t.Errorf("got the error %v, code %q; want the code %q", err, got, want)
	}
}

// refOf returns the ID of a sandbox at the cloud.
func refOf(t *testing.T, c *cloud, box sandpit.Instance) string {
	t.Helper()
	_, text := c.call(t, http.MethodGet, "/sandbox/sandpit-"+string(box.ID()))
	_, rest, _ := strings.Cut(string(text), `"id":"`)
	id, _, _ := strings.Cut(rest, `"`)
	return id
}

// TestEnvironment checks the variables and intervals of a sandbox.
func TestEnvironment(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	o := c.options(t)
	p := open(t, o)
	deadline := time.Now().Add(3 * time.Hour)
	box := create(t, p, sandpit.Spec{
		Env: map[string]string{"RESOLUTION": "800x600x24", "MINE": "yes"}, Labels: map[string]string{"id": "project-7", sandpit.OwnerLabel: "someone"},
		Expiry: sandpit.Expiry{Deadline: deadline, IdleStop: 12 * time.Minute},
	})
	const want = `true
800x600x24
1024
768
false
[]
[]
9222
localhost
[]
yes
`
	script := `printf '%s\n' "$CHROME_PERSISTENT_SESSION" "$RESOLUTION" "$RESOLUTION_WIDTH" "$RESOLUTION_HEIGHT" "$ANONYMIZED_TELEMETRY" \
"[$CHROME_PATH]" "[$CHROME_USER_DATA]" "$CHROME_DEBUGGING_PORT" "$CHROME_DEBUGGING_HOST" "[$CHROME_CDP]" "$MINE"`
	if got := shell(t, box, script); got != want {
		t.Errorf("environment:\n%s\nwant:\n%s", got, want)
	}
	if got := strings.TrimSpace(shell(t, box, `echo "$VNC_PASSWORD"`)); len(got) < 8 || got == "123456" {
		t.Errorf("password %q, want a random one", got)
	}
	_, text := c.call(t, http.MethodGet, "/sandbox/sandpit-"+string(box.ID()))
	for _, part := range []string{
		`"autoStopInterval":12`, `"autoArchiveInterval":1440`, `"autoDeleteInterval":43200`, `"public":false`, `"id":"project-7"`,
		`"autoDestroyAt":"` + deadline.UTC().Format("2006-01-02T15:"),
	} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the cloud has no %s: %s", part, text)
		}
	}
	if err := box.Renew(within(t), sandpit.Expiry{IdleStop: 30 * time.Minute, Delete: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_, text = c.call(t, http.MethodGet, "/sandbox/sandpit-"+string(box.ID()))
	for _, part := range []string{`"autoStopInterval":15`, `"autoDeleteInterval":60`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("the cloud has no %s after renew: %s", part, text)
		}
	}
	if strings.Contains(string(text), "autoDestroyAt") {
		t.Errorf("the cloud still has a deadline: %s", text)
	}
	links, err := box.Links(within(t))
	if err != nil || links.VNC.Port != 6080 || links.Website.Port != 8080 || links.VNC.Token == "" || !strings.Contains(links.VNC.URL, "6080") {
		t.Errorf("links: %+v, %v", links, err)
	}
	a, err := p.ReadAccount(within(t))
	if err != nil || a.Sandboxes != 1 || a.Endpoint != c.endpoint {
		t.Errorf("account: %+v, %v", a, err)
	}
}

// TestStoppedByTheCloud stops and starts a sandbox without its provider.
func TestStoppedByTheCloud(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	p := open(t, c.options(t))
	box := create(t, p, sandpit.Spec{})
	shell(t, box, "echo kept > file")
	ref := refOf(t, c, box)
	ended := make(chan sandpit.Exit, 1)
	ctx := within(t)
	go func() {
		exit, err := box.Wait(ctx)
		if err != nil {
			t.Errorf("wait: %v", err)
		}
		ended <- exit
	}()
	if status, text := c.call(t, http.MethodPost, "/sandbox/"+ref+"/stop"); status != http.StatusOK {
		t.Fatalf("stop: %d: %s", status, text)
	}
	if exit := <-ended; exit.State != sandpit.StateStopped || exit.Known || exit.Reason == "" {
		t.Errorf("exit %+v, want one with the state stopped", exit)
	}
	_, err := box.Guest().Start(within(t), sandpit.Command{Args: []string{"true"}})
	wantCode(t, err, sandpit.Conflict)
	if state, err := box.ReadState(within(t)); err != nil || state != sandpit.StateStopped {
		t.Errorf("state %q, %v", state, err)
	}
	if status, text := c.call(t, http.MethodPost, "/sandbox/"+ref+"/start"); status != http.StatusOK {
		t.Fatalf("start: %d: %s", status, text)
	}
	if got := shell(t, box, "cat file"); got != "kept\n" { // its guest is started on use
		t.Errorf("file %q after the start", got)
	}
	limited, cancel := context.WithTimeout(within(t), 2*time.Second)
	defer cancel()
	if _, err := box.Wait(limited); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("wait for the end of a sandbox that runs again: %v", err)
	}
	// The guest that the provider has started beside the first process ends.
	const find = `for p in /proc/[0-9]*; do tr '\0' ' ' < $p/cmdline | grep -q ' listen ' && echo ${p#/proc/}; done 2>/dev/null; :`
	before := shell(t, box, find)
	if p, err := box.Guest().Start(within(t), sandpit.Command{Args: []string{"kill", "-9", strings.TrimSpace(before)}}); err == nil {
		_, _ = p.Wait(within(t)) // the call ends with the guest, so that the next one comes after its end
	}
	if got := shell(t, box, "cat file"); got != "kept\n" {
		t.Errorf("file %q after the end of the guest", got)
	}
	if after := shell(t, box, find); before == "" || after == before {
		t.Errorf("the guest %q became %q, want another one", before, after)
	}
}

// TestForeignSandboxes: a provider neither lists nor attaches what it has not created.
func TestForeignSandboxes(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	mine, others := open(t, c.options(t)), open(t, c.options(t))
	box := create(t, others, sandpit.Spec{})
	list, err := mine.List(within(t))
	if err != nil || len(list) != 0 {
		t.Errorf("list: %+v, %v", list, err)
	}
	_, err = mine.Attach(within(t), box.Handle())
	wantCode(t, err, sandpit.NotFound)
	_, err = mine.Create(within(t), box.ID(), sandpit.Spec{})
	wantCode(t, err, sandpit.AlreadyExists)
	shell(t, box, "echo unharmed")
}

// TestRefused compares the errors of requests that the cloud refuses.
func TestRefused(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	good := c.options(t)
	wrong, expired, away := good, good, good
	wrong.Key, away.Endpoint = "wrong-key", "http://127.0.0.1:1/api"
	answers := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"statusCode":401,"message":"API key has expired"}`)
	}))
	t.Cleanup(answers.Close)
	expired.Endpoint = answers.URL
	for name, tc := range map[string]struct {
		o    daytona.Options
		spec sandpit.Spec
		code sandpit.Code
		text string
	}{
		"wrong key":     {wrong, sandpit.Spec{}, sandpit.Unauthenticated, "Daytona rejects the API key"},
		"expired key":   {expired, sandpit.Spec{}, sandpit.Unauthenticated, "the API key of Daytona has expired"},
		"away":          {away, sandpit.Spec{}, sandpit.Unavailable, "cannot reach 127.0.0.1:1"},
		"no snapshot":   {good, sandpit.Spec{Image: daytona.SnapshotPrefix + "none"}, sandpit.NotFound, `Snapshot "none" not found`},
		"no image":      {good, sandpit.Spec{Image: "registry.invalid/none:1"}, sandpit.Unavailable, "registry.invalid"},
		"host image":    {good, sandpit.Spec{Image: sandpit.HostImage}, sandpit.Unsupported, "this machine's own programs"},
		"processes":     {good, sandpit.Spec{Resources: sandpit.Resources{PIDs: 5}}, sandpit.Unsupported, "limit of 5 processes"},
		"half a gibi":   {good, sandpit.Spec{Image: "a:1", Resources: sandpit.Resources{Memory: 512 << 20}}, sandpit.Unsupported, "0.5 GiB of memory"},
		"deny rule":     {good, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Deny: []string{"10.0.0.0/8"}}}, sandpit.Unsupported, "Daytona has only rules that allow"},
		"rule for port": {good, sandpit.Spec{Network: sandpit.NetworkPolicy{Online: true, Allow: []string{"a.example:443"}}}, sandpit.Unsupported, "no rules for ports"},
		"directory":     {good, sandpit.Spec{Mounts: []sandpit.Mount{{Source: "/srv", Target: "/srv"}}}, sandpit.Unsupported, "this machine's files"},
		"no volume":     {good, sandpit.Spec{Mounts: []sandpit.Mount{{Volume: "none", Target: "/v"}}}, sandpit.NotFound, `volume "none" does not exist`},
		"own label":     {good, sandpit.Spec{Labels: map[string]string{"dev.sandpit.id": "x"}}, sandpit.Invalid, "belong to the provider"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := tc.o
			o.StateDir = t.TempDir()
			p := open(t, o)
			_, err := p.Create(within(t), sandpit.NewID(), tc.spec)
			wantCode(t, err, tc.code)
			if err == nil || !strings.Contains(err.Error(), tc.text) || strings.Contains(err.Error(), o.Key) {
				t.Errorf("error %q, want one with %q and without the key", err, tc.text)
			}
		})
	}
	_, err := daytona.New(daytona.Options{StateDir: t.TempDir()})
	wantCode(t, err, sandpit.Unauthenticated)
}

// TestQuota: an account whose quota is used up gives an error that says so, and keeps nothing.
func TestQuota(t *testing.T) {
	t.Parallel()
	c := newCloud(t, "SANDPIT_MANAGER_OWNER_QUOTA=1")
	o := c.options(t)
	p := open(t, o)
	create(t, p, sandpit.Spec{})
	_, err := p.Create(within(t), sandpit.NewID(), sandpit.Spec{})
	wantCode(t, err, sandpit.Exhausted)
	if err == nil || !strings.Contains(err.Error(), "a quota of the account at Daytona is used up") || sandpit.HintOf(err) == "" {
		t.Errorf("error %q, hint %q", err, sandpit.HintOf(err))
	}
	if left := c.names(t, o.Manager); len(left) != 1 {
		t.Errorf("sandboxes %v, want one", left)
	}
}
