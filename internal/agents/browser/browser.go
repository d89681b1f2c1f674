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
)

const (
	// startTimeout is how long a browser may take to start, stopTimeout how long to end by
	// itself.
	startTimeout = 60 * time.Second
	stopTimeout  = 5 * time.Second
	// maxTabs is how many pages are open at most; more are closed as they come.
	maxTabs = 20
	// maxNotes is how many notes are kept, maxNote how long one is, in bytes.
	maxNotes = 10
	maxNote  = 500
)

// View is the size of a page's window, in pixels.
type View struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// Options are what a browser is like.
type Options struct {
	// User runs it. Default: the sandbox's.
	User string
	// Profile is an absolute path: the directory for all that the browser keeps, made if
	// it is missing. Another browser that was started with it is ended.
	Profile string
	// Env is added to the environment.
	Env map[string]string
	// View is the size of the window.
	View View
	// Memory is what the browser's messages are kept in. Default: there is no limit.
	Memory *memory.Account
}

// Browser is a browser that runs. Its methods may be called concurrently, but what is done
// to pages should be one thing at a time.
type Browser struct {
	conn      *protocolConn
	process   sandpit.Process
	stop      context.CancelFunc
	errors    *tailBuffer
	ended     chan struct{}
	product   string
	userAgent string

	mu      sync.Mutex
	changed chan struct{} // closed with each change of what follows
	view    View
	accept  bool
	tabs    []*Tab
	current *Tab
	opened  int
	notes   []string
}

// launchScript starts the first browser that there is. Debian's wrapper is passed over, for it
// needs files that not every image has. Chromium's own sandbox cannot be had by root,
// nor where user namespaces are forbidden.
//
//go:embed launch.sh
var launchScript string

// browserFlags are how a browser is started: without a window, spoken to by its descriptors 3
// and 4, and with nothing that asks the network for more than pages do.
func browserFlags(v View) []string {
	return []string{
		"--headless", "--remote-debugging-pipe", fmt.Sprintf("--window-size=%d,%d", v.Width, v.Height),
		// Nobody has a GPU inside, and /dev/shm may be too small for a page.
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
// Unsupported: the sandbox has none. Unavailable or Timeout: it does not start. Exhausted:
// it needs more memory.
func Start(ctx context.Context, g sandpit.Processes, o Options) (*Browser, error) {
	tag := "sandpit-browser " + o.Profile
	if err := endOthers(ctx, g, tag); err != nil {
		return nil, err
	}
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	b := &Browser{stop: stop, errors: &tailBuffer{}, ended: make(chan struct{}), changed: make(chan struct{}), view: o.View}
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
		if process != nil { // nobody follows it any more
			kill, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
			defer cancel()
			_ = process.Signal(kill, sandpit.SIGKILL) // else the next start ends it
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

// endOthers ends what an earlier program of ours has left with the same profile.
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
		_ = p.Signal(ctx, sandpit.SIGKILL) // it has just ended, or Wait tells
		if _, err := p.Wait(ctx); ctx.Err() != nil {
			return err
		}
	}
	return nil
}

// awaitReady waits until the browser answers, and sets it up.
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
		return sandpit.Errorf(sandpit.Timeout, "the browser has not started within %s: %s", startTimeout, b.errors)
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

// statusNoBrowser is the status of launch.sh if there is no browser.
const statusNoBrowser = 127

func (b *Browser) endError(status sandpit.ExitStatus, err error) error {
	switch {
	case err != nil:
		return sandpit.Errorf(sandpit.Unavailable, "the browser has ended: %s", truncate(err.Error(), maxNote)) // not its code: the sandbox may well be there
	case status.Code == statusNoBrowser:
		return errNoBrowser()
	case status.OutOfMemory:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "the browser was ended, for the sandbox's memory had run out"), "give the sandbox 1 GB or more, or close pages")
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "the browser has ended (%s): %s", status, b.errors), "the next call starts it again")
}

func errNoBrowser() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "there is no browser in this image"),
		"use an image with Chromium, such as one built from the template builtin:browser, or install it inside (apt-get install chromium)")
}

// Alive reports whether the browser can be spoken to.
func (b *Browser) Alive() bool { return b.conn.isAlive() }

// Product is the browser's name and version.
func (b *Browser) Product() string { return b.product }

// Agent is what the browser tells servers that it is.
func (b *Browser) Agent() string { return b.userAgent }

// Close ends the browser, which first writes down what it keeps. It is idempotent.
func (b *Browser) Close(ctx context.Context) error {
	defer b.stop()
	b.conn.in.close()
	if b.endsWithin(ctx, stopTimeout) {
		return nil
	}
	kill, cancel := context.WithTimeout(ctx, stopTimeout) // the sandbox may not answer
	defer cancel()
	err := b.process.Signal(kill, sandpit.SIGKILL)
	if b.endsWithin(ctx, stopTimeout) {
		return nil // whatever became of the signal
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

// tailBuffer keeps the end of what is written to it.
type tailBuffer struct {
	mu   sync.Mutex
	data []byte
}

const tailSize = 2000

// Write implements io.Writer. It never fails.
func (t *tailBuffer) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.data = append(t.data, p[max(0, len(p)-tailSize):]...)
	t.data = t.data[max(0, len(t.data)-tailSize):]
	return len(p), nil
}

// String is the line that says why a browser has ended, or else the last one.
func (t *tailBuffer) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(string(t.data), "?")), "\n")
	at := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "FATAL") })
	if at < 0 {
		at = len(lines) - 1
	}
	return truncate(lines[at], maxNote)
}
