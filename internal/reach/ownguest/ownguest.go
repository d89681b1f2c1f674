// Package ownguest brings sandpit's guest into a foreign Linux computer, such as a sandbox of a cloud, beside the
// first process that runs there: it copies the program if it is missing, starts it detached on a TCP port, and returns
// a client for it. It needs two functions: one that writes a file and one that runs a shell script.
//
// The guest's key is created inside and kept in a file that only root can read. Start returns the same guest again if
// it runs already, so nothing secret needs to be stored outside.
//
// The answers of the computer are untrusted: they are bounded and checked.
package ownguest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// DefaultPort is the TCP port of the guest, beside that of E2B's guest.
const DefaultPort = 49981

const (
	// readyTime is how long the guest may take to answer through the network of the cloud, after it answers inside.
	readyTime = 30 * time.Second
	readyPoll = 100 * time.Millisecond
)

// Result is what a script printed, and its exit status.
type Result struct {
	Stdout, Stderr []byte
	Code           int
}

// Computer is a foreign computer.
type Computer struct {
	// WriteFile writes a file of size bytes. The directory exists.
	WriteFile func(ctx context.Context, path string, content io.Reader, size int64) error
	// Run runs a script with sh, as the user with the most rights.
	Run func(ctx context.Context, script string) (Result, error)
	// HTTP reaches the TCP port Port of the computer. Default port: DefaultPort.
	HTTP http.RoundTripper
	Port int
}

// Settings are what the guest gives to programs; see envd.InitRequest. The zero value changes nothing.
type Settings struct {
	Env           map[string]string
	User, WorkDir string
}

// Guest is a running guest.
type Guest struct {
	*envd.Client

	// Key is the key of the guest.
	Key string
	// Dialer opens connections to ports of the computer through the guest.
	Dialer Dialer
	// Started says that the guest has just been started: it knows no command.
	Started bool
}

// Start starts the guest, unless it runs, and applies the settings.
//
// Unsupported: the computer cannot have the guest; the error says why. Invalid: there is no such user, or the working
// directory is not valid. Unavailable: the guest does not answer. Errors of the computer's functions are returned.
func Start(ctx context.Context, c Computer, s Settings) (*Guest, error) {
	if c.Port == 0 {
		c.Port = DefaultPort
	}
	launched, err := c.launch(ctx)
	if err != nil {
		return nil, fmt.Errorf("start sandpit's guest: %w", err)
	}
	g := &Guest{Client: envd.New(c.HTTP, launched.Key), Key: launched.Key, Dialer: Dialer{c.HTTP, launched.Key}, Started: launched.Started}
	if err := g.awaitReady(ctx, s); err != nil {
		return nil, fmt.Errorf("start sandpit's guest: %w", err)
	}
	return g, nil
}

// awaitReady applies the settings as soon as the guest can be reached.
func (g *Guest) awaitReady(ctx context.Context, s Settings) error {
	limited, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		err := g.Init(limited, envd.InitRequest{Env: s.Env, User: s.User, WorkDir: s.WorkDir})
		switch sandpit.CodeOf(err) {
		case "", sandpit.Invalid:
			return err
		case sandpit.Unauthenticated:
			return sandpit.Errorf(sandpit.Unavailable, "another program answers on its port: %w", err)
		default: // it may be a matter of time
		}
		select {
		case <-time.After(readyPoll):
		case <-limited.Done():
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return sandpit.Errorf(sandpit.Unavailable, "it cannot be reached within %v: %w", readyTime, err)
		}
	}
}

// launch starts the guest, and copies the program first if it is missing.
func (c Computer) launch(ctx context.Context) (guest.Launched, error) {
	answer, err := c.run(ctx, c.launchScript(""))
	if err != nil {
		return guest.Launched{}, err
	}
	machine, missing := strings.CutPrefix(answer, answerMissing)
	if !missing {
		return parseLaunched(answer)
	}
	temporary, err := c.copyProgram(ctx, machine)
	if err != nil {
		return guest.Launched{}, err
	}
	if answer, err = c.run(ctx, c.launchScript(temporary)); err != nil {
		return guest.Launched{}, err
	}
	return parseLaunched(answer)
}

// copyProgram writes the packed program to a temporary file and returns its name.
func (c Computer) copyProgram(ctx context.Context, machine string) (string, error) {
	arch := map[string]string{"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}[machine]
	if arch == "" {
		return "", sandpit.Errorf(sandpit.Unsupported, "it has no program for the architecture %q", plainText(machine))
	}
	program, err := guestbin.OpenPacked(arch)
	if err != nil {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this sandpit has no guest program for %s", arch),
			"build it with: go generate ./internal/inside/guestbin && CGO_ENABLED=0 go build ./cmd/sandpit")
	}
	defer program.Close()
	content, err := io.ReadAll(program) // is in memory already
	if err != nil {
		return "", err
	}
	temporary := "/tmp/.sandpit-guest-" + string(sandpit.NewID()) + ".gz"
	return temporary, c.WriteFile(ctx, temporary, bytes.NewReader(content), int64(len(content)))
}
