package daemon

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	terminal "github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// TestClientShell runs commands in a shell that reads them from a client, as the tools of an
// agent do that has a server's sandbox. The server cannot see them and has to be asked.
func TestClientShell(t *testing.T) {
	t.Parallel()
	w := newTenancy(t, "[sandbox]", "command_screen = 'deny'")
	c, err := client.New(client.Options{URL: w.url, Key: w.bob})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	session, err := terminal.Open(t.Context(), c.Sandboxes.Open(sandpit.ID(w.ids["sandbox"])).Guest(), terminal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := session.Close(); err != nil {
			t.Errorf("close the shell: %v", err)
		}
	}()
	_, err = session.Run(t.Context(), terminal.RunRequest{Command: "false && mkfs.ext4 /dev/sda; echo it ran"})
	if sandpit.CodeOf(err) != sandpit.PermissionDenied || !strings.Contains(err.Error(), "potentially dangerous operation") {
		t.Errorf("a command that is refused: %v", err)
	}
	const command = "expr 40 + 2; exit 7"
	if result, err := session.Run(t.Context(), terminal.RunRequest{Command: command}); err != nil || string(result.Stdout) != "42\n" {
		t.Errorf("a command that is not refused: %q, %v", result.Stdout, err)
	}
	digest := sandpit.DigestArgs([]string{"bash", "-c", command})
	trail := ""
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		trail = string(w.must(t, w.bob, http.MethodGet, "/v1/events?limit=999", ""))
		if strings.Contains(trail, digest) && strings.Contains(trail, "it was refused before it started") {
			break
		}
	}
	if !strings.Contains(trail, digest) || strings.Count(trail, "it was refused before it started") != 1 || strings.Contains(trail, "/dev/sda") {
		t.Errorf("want both commands in the audit trail once, without what they say:\n%s", trail)
	}
	at := "/v1/sandboxes/" + w.ids["sandbox"] + "/announce"
	for _, body := range []string{
		`{}`, `{"args": ["true"], "ended": {"took_seconds": 1, "exit_code": 0}}`, `{"ended": {"took_seconds": -1, "exit_code": 0}}`,
		`{"ended": {"took_seconds": 1e300, "exit_code": 0}}`, `{"ended": {"took_seconds": 1, "exit_code": 256}}`,
	} {
		if status, answer := w.request(t, w.bob, http.MethodPost, at, body); status != http.StatusUnprocessableEntity && status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", body, status, answer)
		}
	}
	if status, answer := w.request(t, w.bob, http.MethodPost, at, `{"ended": {"took_seconds": 0.5, "exit_code": 3}}`); status != http.StatusNoContent {
		t.Errorf("an end: %d %s", status, answer)
	}
}
