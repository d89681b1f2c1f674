package browser

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

const (
	// startTimeout bounds the start of a browser, stopTimeout its orderly end.
	startTimeout = 60 * time.Second
	stopTimeout  = 5 * time.Second
	// maxTabs limits the open pages; further ones are closed immediately.
	maxTabs = 20
	// maxNotes limits the stored notes, maxNote the length of one in bytes.
	maxNotes = 10
	maxNote  = 500
)

// View is the size of a page's window, in pixels.
type View struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// Options configure a browser.
type Options struct {
	// User runs the browser. Default: the sandbox's user.
	User string
	// Profile is the absolute path of the browser's data directory, created if it is missing.
	// Another browser that was started with it is ended.
	Profile string
	// Env is added to the environment.
	Env map[string]string
	// View is the size of the window.
	View View
	// Memory is the account for the browser's messages. Default: no limit.
	Memory *memory.Account
}

// Browser is a running browser. Its methods may be called concurrently, but actions on pages
// should be sequential.
type Browser struct {
	conn      *protocolConn
	process   sandpit.Process
	stop      context.CancelFunc
	errors    *textlen.Tail
	ended     chan struct{}
	product   string
	userAgent string

	mu      sync.Mutex
	changed chan struct{} // closed at each change of the following fields
	view    View
	accept  bool
	tabs    []*Tab
	current *Tab
	opened  int
	notes   []string
}

// launchScript starts the first browser that it finds. It skips Debian's wrapper, which
// needs files that not every image has. Chromium's own sandbox does not work for root or without
// user namespaces.
//
//go:embed launch.sh
var launchScript string

// browserFlags returns the browser's arguments: without a window, controlled over descriptors 3
// and 4, and without network requests besides those of pages.
func browserFlags(v View) []string {
	return []string{
		"--headless", "--remote-debugging-pipe", fmt.Sprintf("--window-size=%d,%d", v.Width, v.Height),
		// A sandbox has no GPU, and its /dev/shm may be too small for a page.
		"--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--force-color-profile=srgb",
		"--no-first-run", "--no-default-browser-check", "--no-service-autorun", "--password-store=basic", "--use-mock-keychain",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-domain-reliability",
		"--disable-extensions", "--disable-sync", "--disable-client-side-phishing-detection", "--metrics-recording-only", "--no-pings",
		"--disable-breakpad", "--disable-crash-reporter", "--deny-permission-prompts", "--disable-search-engine-choice-screen",
		"--disable-features=Translate,MediaRouter,OptimizationHints,AutofillServerCommunication,CertificateTransparencyComponentUpdater",
		"--disk-cache-size=52428800", "about:blank",
	}
}

// Start starts a browser, which outlives ctx. The caller must Close it.
//
// Unsupported: the image has no browser. Unavailable or Timeout: it does not start. Exhausted:
// not enough memory.
func Start(ctx context.Context, g sandpit.Processes, o Options) (*Browser, error) {
	tag := "sandpit-browser " + o.Profile
	if err := endOthers(ctx, g, tag); err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &Browser{stop: stop, errors: textlen.NewTail(tailSize), ended: make(chan struct{}), changed: make(chan struct{}), view: o.View}
	b.conn = newConn(b.handleEvent, o.Memory)
	abandoned := context.AfterFunc(ctx, stop)
	process, err := g.Start(life, sandpit.Command{
		Args: append([]string{"/bin/sh", "-c", launchScript, "sh", o.Profile}, browserFlags(o.View)...), Env: o.Env, Dir: "/", User: o.User, Tag: tag,
		Stdin: b.conn.in, Stdout: b.conn, Stderr: b.errors,
	})
	if !abandoned() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		if process != nil { // it started after the cancellation
			kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer cancel()
			_ = process.Signal(kill, sandpit.SIGKILL) // on failure the next start ends it
		}
		stop()
		b.conn.in.close()
		if sandpit.CodeOf(err) == sandpit.NotFound {
			return nil, errNoBrowser()
		}
		return nil, err
	}
	b.process = process
	go b.waitExit(life)
	if err := b.awaitReady(ctx); err != nil {
		return nil, startError(err, b.Close(context.WithoutCancel(ctx)))
	}
	return b, nil
}

func startError(err, closing error) error {
	if closing != nil {
		return fmt.Errorf("%w; then: %w", err, closing)
	}
	return err
}

// endOthers ends browsers that an earlier process has left with the same profile.
func endOthers(ctx context.Context, g sandpit.Processes, tag string) error {
	list, err := g.ListProcesses(ctx)
	if err != nil {
		return err
	}
	for _, info := range list {
		if info.Tag != tag {
			continue
		}
		p, err := g.Connect(ctx, info.PID, sandpit.Streams{})
		if err != nil {
			continue // it has just ended
		}
		_ = p.Signal(ctx, sandpit.SIGKILL) // Wait reports a failure
		if _, err := p.Wait(ctx); ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until the browser responds, and configures it.
func (b *Browser) awaitReady(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	raw, err := b.conn.call(limited, "", "Browser.getVersion", nil)
	var version struct {
		Product string `json:"product"`
		Agent   string `json:"userAgent"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &version)
	}
	b.product, b.userAgent = truncate(version.Product, 100), truncate(version.Agent, 300)
	for _, r := range []request{
		{Method: "Browser.setDownloadBehavior", Params: object{"behavior": "deny", "eventsEnabled": true}},
		{Method: "Target.setDiscoverTargets", Params: object{"discover": true}},
		{Method: "Target.setAutoAttach", Params: object{
			"autoAttach": true, "waitForDebuggerOnStart": false, "flatten": true, "filter": []object{{"type": "page"}},
		}},
	} {
		if err == nil {
			_, err = b.conn.call(limited, "", r.Method, r.Params)
		}
	}
	if limited.Err() != nil && ctx.Err() == nil {
		return sandpit.Errorf(sandpit.Timeout, "the browser did not start within %s: %s", startTimeout, findExitReason(b.errors.String()))
	}
	return err
}

type object = map[string]any

// waitExit waits for the end of the process.
func (b *Browser) waitExit(ctx context.Context) {
	status, err := b.process.Wait(ctx)
	b.conn.failAll(b.endError(status, err))
	b.conn.in.close()
	close(b.ended)
}

// statusNoBrowser is the exit status of launch.sh without a browser.
const statusNoBrowser = 127

func (b *Browser) endError(status sandpit.ExitStatus, err error) error {
	switch {
	case err != nil:
		return sandpit.Errorf(sandpit.Unavailable, "the browser exited: %s", truncate(err.Error(), maxNote)) // without its code, which may be about the sandbox
	case status.Code == statusNoBrowser:
		return errNoBrowser()
	case status.OutOfMemory:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "the browser was killed because the sandbox ran out of memory"), "give the sandbox 1 GB or more, or close pages")
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the browser exited (%s): %s", status, findExitReason(b.errors.String())), "the next call starts it again")
}

func errNoBrowser() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this image has no browser"),
		"use an image with Chromium, such as the template builtin:browser, or install it (apt-get install chromium)")
}

// Alive reports whether the browser is usable.
func (b *Browser) Alive() bool { return b.conn.isAlive() }

// Product returns the browser's name and version.
func (b *Browser) Product() string { return b.product }

// Agent returns the browser's User-Agent header.
func (b *Browser) Agent() string { return b.userAgent }

// Close ends the browser, which saves its data first. It is idempotent.
func (b *Browser) Close(ctx context.Context) error {
	defer b.stop()
	b.conn.in.close()
	if b.endsWithin(ctx, stopTimeout) {
		return nil
	}
	kill, cancel := context.WithTimeout(ctx, stopTimeout) // the sandbox may not respond
	defer cancel()
	err := b.process.Signal(kill, sandpit.SIGKILL)
	if b.endsWithin(ctx, stopTimeout) {
		return nil // even if the signal failed
	}
	b.stop()
	<-b.ended
	return err
}

func (b *Browser) endsWithin(ctx context.Context, limit time.Duration) bool {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-b.ended:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

const tailSize = 2000

// findExitReason returns the line of a browser's errors that says why it exited, or the last one.
func findExitReason(errors string) string {
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(errors, "?")), "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "FATAL") })
	if at < 0 {
		at = len(lines) - 1
	}
	return truncate(lines[at], maxNote)
}
