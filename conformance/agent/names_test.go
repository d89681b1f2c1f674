package agent_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
)

// shellImage is an image with a shell.
const shellImage = "sandpit-test/agent-shell:1"

// newServerOfAll starts a server with every provider. Another one has the role of both clouds.
func newServerOfAll(t *testing.T) *server {
	t.Helper()
	testdocker.Import(t, shellImage, testdocker.BusyboxFiles(t))
	cloud := newServer(t, "SANDPIT_SERVER_KEYLESS=false", "SANDPIT_E2B_TEMPLATES=base=host")
	return newServer(
		t, "SANDPIT_PROVIDER=gvisor,docker,e2b,daytona", "DOCKER_HOST="+testdocker.Host(t), "SANDPIT_DOCKER_IMAGE="+shellImage,
		"SANDPIT_E2B_CLOUD_API_KEY="+cloud.key, "SANDPIT_E2B_CLOUD_API_URL="+cloud.address, "SANDPIT_E2B_CLOUD_SANDBOX_URL="+cloud.address,
		"DAYTONA_API_KEY="+cloud.key, "DAYTONA_API_URL="+cloud.address+"/api", "SANDPIT_DAYTONA_SANDBOX_IMAGE_NAME=daytona-snapshot:daytonaio/sandbox",
	)
}

// TestInstanceNames has the documented calls of a sandbox work the same on every provider: create with a
// time, run a command, write and read a file, get a URL of a port, and delete.
func TestInstanceNames(t *testing.T) {
	t.Parallel()
	s := newServerOfAll(t)
	for _, provider := range []string{"gvisor", "docker", "e2b", "daytona"} {
		t.Run(provider, func(t *testing.T) {
			box := must(s.Sandboxes.Create(t.Context(), client.CreateRequest{Provider: provider, Timeout: time.Hour}))(t)
			if box.ID == "" || box.Provider != provider || box.Lease.Deadline.IsZero() {
				t.Errorf("created: %+v", box.Sandbox)
			}
			text := "first\n\x00\xffsecond ☃"
			if err := box.WriteFile(t.Context(), "/tmp/dir/file", []byte(text)); err != nil {
				t.Fatal(err)
			}
			if got := must(box.ReadFile(t.Context(), "/tmp/dir/file"))(t); string(got) != text {
				t.Errorf("read %q", got)
			}
			result := must(box.Run(t.Context(), "head -n 1 /tmp/dir/file; echo bad >&2; exit 3"))(t)
			if result.Stdout != "first\n" || result.Stderr != "bad\n" || result.ExitCode != 3 {
				t.Errorf("%+v", result)
			}
			if u := must(s.Ports.URL(t.Context(), box.ID, 8000, time.Minute))(t); !strings.Contains(u.URL+u.PathURL, string(box.ID)) {
				t.Errorf("URL %+v", u)
			}
			if _, err := box.ReadFile(t.Context(), "/tmp/none"); sandpit.CodeOf(err) != sandpit.NotFound {
				t.Errorf("no file: %v", err)
			}
			if err := box.Delete(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := box.Run(t.Context(), "true"); sandpit.CodeOf(err) != sandpit.Gone && sandpit.CodeOf(err) != sandpit.NotFound {
				t.Errorf("after delete: %v", err)
			}
		})
	}
}
