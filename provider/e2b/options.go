package e2b

import (
	"cmp"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Name is the name of the provider.
const Name = "e2b"

// GuestMode says which guest serves a sandbox.
type GuestMode string

// The guest modes.
const (
	// GuestAuto means sandpit's guest, and E2B's in a sandbox that cannot have it.
	GuestAuto GuestMode = "auto"
	// GuestOwn means sandpit's guest; a sandbox that cannot have it is refused.
	GuestOwn GuestMode = "own"
	// GuestCloud means E2B's guest.
	GuestCloud GuestMode = "cloud"
)

// Options are the options of a Provider. The zero value of a field means the default stated with it.
type Options struct {
	// Key is the API key. It is required.
	Key string
	// Domain is the domain of the cloud. Default: e2b.app.
	Domain string
	// APIURL is the URL of the API. Default: https://api.DOMAIN.
	APIURL string
	// SandboxURL is one URL at which all sandboxes are reached; headers name the sandbox and the port. Default: each
	// port of a sandbox has a host of its own in the domain.
	SandboxURL string
	// Template is the template of sandboxes whose spec names no image. Default: base.
	Template string
	// Timeout is the time until the cloud ends a sandbox whose expiry has no deadline. Default: 1 h.
	Timeout time.Duration
	// Guest says which guest serves. Default: GuestAuto.
	Guest GuestMode
	// GuestPort is the TCP port of sandpit's guest in a sandbox. Default: 49981.
	GuestPort int
	// Identity marks the sandboxes of a server. Default: a random one, for a program that ends its sandboxes.
	Identity string
	// SnapshotDir is the directory for what E2B does not store about snapshots. Default: in memory, for a program that
	// removes its snapshots.
	SnapshotDir string
	// CallTimeout bounds each call of the API. Default: 30 s. Creating a sandbox may take CreateTimeout. Default: 2 min.
	CallTimeout, CreateTimeout time.Duration
	// Poll is the time between two looks at the state of sandboxes whose end a caller waits for. Default: 10 s.
	Poll time.Duration
	// Transport sends all requests. Default: connections of the provider's own.
	Transport http.RoundTripper
	// Notice reports oddities. Default: they are not reported.
	Notice func(text string)
}

const (
	defaultDomain   = "e2b.app"
	defaultTemplate = "base"
	guestPort       = 49983
	// minTimeout and maxTimeout bound what a sandbox can be given until its expiry. The cloud has bounds of its own.
	minTimeout = 15 * time.Second
	maxTimeout = 10 * 365 * 24 * time.Hour
)

func (o Options) withDefaults() (Options, error) {
	if o.Key == "" {
		return o, sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, "provider e2b: no API key"),
			"set E2B_API_KEY to a key of your account")
	}
	o.Domain = cmp.Or(o.Domain, defaultDomain)
	o.APIURL = cmp.Or(o.APIURL, "https://api."+o.Domain)
	o.Template = cmp.Or(o.Template, defaultTemplate)
	o.Timeout = cmp.Or(o.Timeout, time.Hour)
	o.Guest = cmp.Or(o.Guest, GuestAuto)
	o.Identity = cmp.Or(o.Identity, string(sandpit.NewID()))
	o.CallTimeout = cmp.Or(o.CallTimeout, 30*time.Second)
	o.CreateTimeout = cmp.Or(o.CreateTimeout, 2*time.Minute)
	o.Poll = cmp.Or(o.Poll, 10*time.Second)
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	if strings.ContainsAny(o.Domain, "/@?# ") {
		return o, sandpit.Errorf(sandpit.Invalid, "provider e2b: invalid domain %.100q", o.Domain)
	}
	if o.SandboxURL != "" {
		u, err := url.Parse(o.SandboxURL)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Scheme != "http" && u.Scheme != "https" {
			return o, sandpit.Errorf(sandpit.Invalid, "provider e2b: invalid sandbox URL: want http:// or https:// and a host")
		}
	}
	return o, nil
}
