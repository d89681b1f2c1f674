package daytona

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// serviceSession is the session of the toolbox in which the services of an image run.
const serviceSession = "supervisord-session"

// The ports of the services of OpenManus's image.
const (
	desktopPort = 6080 // VNC in a browser
	websitePort = 8080
)

// startServices runs Options.Entrypoint, if the image has its program and its files, and returns when
// the services are ready: supervisord reports that none is starting any more.
//
// Unavailable: a service does not start within Options.ServiceTimeout.
func (b *sandbox) startServices(ctx context.Context) error {
	if b.p.o.Entrypoint == "" {
		return nil
	}
	there, err := b.hasServices(ctx)
	if err != nil || !there {
		return err
	}
	if err := b.openServiceSession(ctx); err != nil {
		return fmt.Errorf("start the services of sandbox %s: %w", b.id, err)
	}
	if err := b.awaitServices(ctx); err != nil {
		return fmt.Errorf("start the services of sandbox %s: %w", b.id, err)
	}
	return nil
}

// hasServices reports whether the image has the program of the entrypoint, and the configuration
// that it names.
func (b *sandbox) hasServices(ctx context.Context) (bool, error) {
	words := strings.Fields(b.p.o.Entrypoint)
	script := "command -v " + quoteShell(words[0]) + " >/dev/null 2>&1"
	if file := configFile(words); file != "" {
		script += " && test -e " + quoteShell(file)
	}
	out, err := b.execute(ctx, script, launchTime)
	return out.ExitCode == 0, err
}

// configFile returns the file that follows -c, or "".
func configFile(words []string) string {
	for i, word := range words {
		if word == "-c" && i+1 < len(words) {
			return words[i+1]
		}
	}
	return ""
}

// openServiceSession starts the entrypoint in a session. If the session exists already and its
// program runs, nothing is done.
func (b *sandbox) openServiceSession(ctx context.Context) error {
	session := "/process/session/" + serviceSession
	c, err := jsonCall("/process/session", map[string]string{"sessionId": serviceSession})
	if err != nil {
		return err
	}
	if err := b.readNothing(ctx, c); sandpit.CodeOf(err) == sandpit.Conflict {
		runs, err := b.sessionRuns(ctx, session)
		if err != nil || runs {
			return err
		}
		if err := b.readNothing(ctx, toolCall{method: http.MethodDelete, path: session}); err != nil && sandpit.CodeOf(err) != sandpit.NotFound {
			return err
		}
		if c, err = jsonCall("/process/session", map[string]string{"sessionId": serviceSession}); err != nil {
			return err
		}
		if err := b.readNothing(ctx, c); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	c, err = jsonCall(session+"/exec", map[string]any{
		"command": "exec " + b.p.o.Entrypoint, "runAsync": true, "var_async": true, "async": true,
	})
	if err != nil {
		return err
	}
	return b.readNothing(ctx, c)
}

// sessionRuns reports whether a command of a session runs.
func (b *sandbox) sessionRuns(ctx context.Context, path string) (bool, error) {
	var answer struct {
		Commands []struct {
			ExitCode *int `json:"exitCode"`
		} `json:"commands"`
	}
	err := b.readJSON(ctx, toolCall{method: http.MethodGet, path: path}, &answer)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return false, nil
	}
	for _, c := range answer.Commands {
		if c.ExitCode == nil {
			return true, nil
		}
	}
	return false, err
}

// readNothing sends a call whose response does not matter.
func (b *sandbox) readNothing(ctx context.Context, c toolCall) error { return b.readJSON(ctx, c, nil) }

// servicePoll is the time between two looks at services.
const servicePoll = 500 * time.Millisecond

// statusPattern is a line of supervisorctl.
var statusPattern = pattern.New(`(?m)^(\S+)\s+(RUNNING|STARTING|BACKOFF|STOPPED|STOPPING|EXITED|FATAL|UNKNOWN)\b`)

// awaitServices waits until no service of supervisord is starting. Without supervisord it waits
// until the entrypoint runs or has succeeded.
func (b *sandbox) awaitServices(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, b.p.o.ServiceTimeout)
	defer cancel()
	words := strings.Fields(b.p.o.Entrypoint)
	if !strings.HasSuffix(words[0], "supervisord") {
		_, err := b.sessionRuns(limited, "/process/session/"+serviceSession)
		return err
	}
	script := quoteShell(strings.TrimSuffix(words[0], "d") + "ctl") // beside supervisord
	if file := configFile(words); file != "" {
		script += " -c " + quoteShell(file)
	}
	script += " status 2>&1; :"
	last := ""
	for {
		out, err := b.execute(limited, script, launchTime)
		if err != nil && limited.Err() == nil {
			return err
		}
		ready, failed := readServices(out.Result)
		switch {
		case len(failed) > 0 && ready:
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "supervisord cannot start %s", strings.Join(failed, ", ")),
				"see its log: sandpit exec "+string(b.id)+" -- cat "+supervisorLog)
		case ready:
			return nil
		}
		if text := cleanText(out.Result); text != "" {
			last = text
		}
		select {
		case <-time.After(servicePoll):
		case <-limited.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "supervisord is not ready after %v: %s", b.p.o.ServiceTimeout, last),
				"check daytona.sandbox_entrypoint and the image, or set sandbox_entrypoint to nothing")
		}
	}
}

// supervisorLog is the usual log of supervisord.
const supervisorLog = "/var/log/supervisor/supervisord.log"

// readServices reads the output of supervisorctl: whether every service has its final state, and
// which services have failed.
func readServices(text string) (ready bool, failed []string) {
	lines := statusPattern().FindAllStringSubmatch(text, -1)
	ready = len(lines) > 0
	for _, line := range lines {
		switch line[2] {
		case "STARTING", "STOPPING", "BACKOFF", "UNKNOWN":
			ready = false
		case "FATAL":
			failed = append(failed, line[1])
		}
	}
	return ready, failed
}

// quoteShell quotes a word for a shell.
func quoteShell(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// Preview is how a port of a sandbox is reached through Daytona.
type Preview struct {
	Port int    `json:"port"`
	URL  string `json:"url"`
	// Token opens the port as the value of the header TokenHeader, or of the query parameter
	// TokenParameter. It is a secret.
	Token string `json:"token,omitempty"`
	// Public says that the port needs no token.
	Public bool `json:"public"`
}

// Where a preview's token is sent.
const (
	TokenHeader    = "x-daytona-preview-token" //nolint:gosec // a name
	TokenParameter = "DAYTONA_SANDBOX_AUTH_KEY"
)

// Preview returns how a port is reached through Daytona.
func (i *Instance) Preview(ctx context.Context, port int) (Preview, error) {
	if err := checkPort(port); err != nil {
		return Preview{}, err
	}
	v, err := i.b.p.control.getPreview(ctx, i.b.id, i.b.ref, port)
	if err != nil {
		return Preview{}, asGone(err)
	}
	if u, err := url.Parse(v.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return Preview{}, sandpit.Errorf(sandpit.Internal, "Daytona reports the invalid preview URL %.200q", v.URL)
	}
	return Preview{Port: port, URL: v.URL, Token: v.Token, Public: i.b.p.o.Public}, nil
}

// Links are the previews of the services of OpenManus's image.
type Links struct {
	// VNC is the desktop, and Website the website of the sandbox.
	VNC     Preview `json:"vnc"`
	Website Preview `json:"website"`
}

// Links returns the previews of the desktop and of the website.
func (i *Instance) Links(ctx context.Context) (l Links, err error) {
	if l.VNC, err = i.Preview(ctx, desktopPort); err != nil {
		return l, err
	}
	l.Website, err = i.Preview(ctx, websitePort)
	return l, err
}
