package preview

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// errPrivate is the error for every private port without a token, whether or not the port
// exists.
func errPrivate() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, "this preview is private"),
		"open the URL that sandpit url prints")
}

// pass is how a request got in.
type pass struct {
	// fresh is a token that came with the URL, or that a ticket was exchanged for, and
	// until is when it ends.
	fresh string
	until time.Time
	// byBrowser says that it came by a URL or a cookie, which a browser sends for whatever
	// page has it do so.
	byBrowser bool
	// release is called when the request is done.
	release func()
}

// freePass is the pass of a request that needs nothing.
func freePass() pass { return pass{release: func() {}} }

// authorizer decides which requests see a port, by tokens, keys, tickets and cookies. Its methods
// return the request to use from there on: its context ends when the token or key does that it
// shows. The caller releases the pass. All methods may be called concurrently.
type authorizer struct {
	manager *manager.Manager
	tokens  *token.Tokens
	keys    Keys
	clock   clock.Clock
	admit   func(http.ResponseWriter, *http.Request) (*http.Request, error) // of the API's listener
	frames  []string                                                        // see Options.Frames
	ports   *portSettings
	tickets tickets
}

// authorizeViewer decides whether a request may see a port.
func (a *authorizer) authorizeViewer(w http.ResponseWriter, r *http.Request, t target) (*http.Request, pass, error) {
	if t.label != "" {
		return a.enterByLabel(r, t)
	}
	if known, r, p, err := a.enterAsE2B(r, t); known {
		return r, p, err
	}
	known := errPrivate()
	if t.mode == byHeader {
		admitted, err := a.admit(w, withoutUser(r, t))
		if err != nil && sandpit.CodeOf(err) != sandpit.Unauthenticated {
			return r, freePass(), err // the wrong name, a page of another site, too often
		}
		r, known = r.WithContext(admitted.Context()), err
	}
	settings := a.ports.find(t.id, t.port)
	if isPublic(settings, t.rules) {
		return r, freePass(), nil
	}
	if secret, shown := shownToken(r.Header, t.port); shown {
		return a.admitToken(r, secret, grantsFor(settings)...)
	}
	switch {
	case t.mode == byHeader && known == nil:
		return a.enterByKey(r, t)
	case t.mode == byHeader || t.port == guestPort:
		return r, freePass(), known
	}
	if in, p, shown, err := a.enterByURL(r, settings); shown {
		return in, p, err
	}
	if in, p, shown, err := a.enterByBearer(r, t); shown {
		return in, p, err
	}
	return a.enterByCookie(r, settings)
}

// enterByBearer admits a request to a host name of a port that has an API key of the sandbox's owner
// in the header Authorization. Other values of the header are for the program at the port, which
// never sees API keys.
func (a *authorizer) enterByBearer(r *http.Request, t target) (in *http.Request, p pass, shown bool, err error) {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if secret = strings.TrimSpace(secret); !strings.EqualFold(scheme, "Bearer") || !api.IsKey(secret) {
		return r, freePass(), false, nil
	}
	key, err := a.keys.Check(r.Context(), secret)
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		err = errPrivate()
	}
	if err != nil {
		return r, freePass(), true, err
	}
	r = r.WithContext(api.WithPrincipal(r.Context(), api.Principal{Owner: key.Owner, Admin: key.Admin, KeyID: key.ID}))
	in, p, err = a.enterByKey(r, t)
	if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.Gone {
		err = errPrivate() // whether the sandbox exists or not
	}
	return in, p, true, err
}

// grantsFor are what a token in a header may be for.
func grantsFor(settings store.Preview) []token.Grant {
	if settings.Port == guestPort {
		return []token.Grant{token.Guest(settings.Sandbox)}
	}
	grants := []token.Grant{grantOf(settings), token.Traffic(settings.Sandbox)}
	if settings.Port == toolboxPort {
		grants = append(grants, token.Guest(settings.Sandbox))
	}
	return grants
}

func grantOf(settings store.Preview) token.Grant {
	return token.Preview(settings.Sandbox, settings.Port, settings.Epoch)
}

// admitToken lets a request in that shows a token for one of some grants.
func (a *authorizer) admitToken(r *http.Request, secret string, grants ...token.Grant) (*http.Request, pass, error) {
	return enterBy(r, func() (*token.Admission, error) { return a.tokens.Admit(r.Context(), secret, grants...) })
}

// enterBy lets a request in for which admit returns an admission.
func enterBy(r *http.Request, admit func() (*token.Admission, error)) (*http.Request, pass, error) {
	in, err := admit()
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		err = errPrivate()
	}
	if err != nil {
		return r, freePass(), err
	}
	return r.WithContext(in.Context()), pass{until: in.Expires, release: in.Release}, nil
}

// enterByKey lets a request in whose API key was looked at.
func (a *authorizer) enterByKey(r *http.Request, t target) (*http.Request, pass, error) {
	if _, err := api.Find(r.Context(), a.manager, t.id); err != nil {
		return r, freePass(), err
	}
	p, err := api.PrincipalOf(r.Context())
	if err != nil {
		return r, freePass(), err
	}
	ctx, release, err := a.keys.Attach(r.Context(), p.KeyID)
	if err != nil {
		return r, freePass(), err
	}
	return r.WithContext(ctx), pass{release: release}, nil
}

// withoutUser is a request for the guest without the name of a user inside, which is
// no key of ours that is wrong.
func withoutUser(r *http.Request, t target) *http.Request {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if t.port != guestPort || !strings.EqualFold(scheme, "Basic") {
		return r
	}
	r = r.Clone(r.Context())
	r.Header.Del("Authorization")
	return r
}

// shownToken returns the token that a header carries. Of several that differ none
// counts.
func shownToken(h http.Header, port int) (token string, shown bool) {
	names := []string{headerToken, headerTraffic, headerDaytona}
	if port == guestPort {
		names = []string{headerToken, headerTraffic, headerGuest}
	}
	for _, name := range names {
		for _, value := range h.Values(name) {
			if shown && value != token {
				return "", true
			}
			token, shown = value, true
		}
	}
	return token, shown
}

// The parameters of a URL that carry a token and a ticket.
const (
	queryToken  = "sandpit_token"
	queryTicket = "sandpit_ticket"
)

// enterByURL admits a request whose URL contains a token or ticket for the port. A URL with
// several of them admits nothing. Neither it nor a link preview uses up a ticket.
func (a *authorizer) enterByURL(r *http.Request, settings store.Preview) (in *http.Request, p pass, shown bool, err error) {
	name, value, several := queryValue(r.URL.RawQuery)
	switch {
	case value == "" && !several:
		return r, freePass(), false, nil
	case several, name == queryTicket && r.Method != http.MethodGet:
		return r, freePass(), true, errPrivate()
	case name == queryTicket:
		if value, err = a.exchangeTicket(r.Context(), value, settings); err != nil {
			return r, freePass(), true, err
		}
	}
	grants := []token.Grant{grantOf(settings)}
	if name == queryDaytona {
		grants = grantsFor(settings)
	}
	in, p, err = a.admitToken(r, value, grants...)
	if err == nil {
		p.fresh, p.byBrowser = value, true
	}
	return in, p, true, err
}

// queryValue returns the token or ticket in a query, and whether there are several.
func queryValue(raw string) (name, value string, several bool) {
	for part := range strings.SplitSeq(raw, "&") {
		key, text, _ := strings.Cut(part, "=")
		if !isOurParameter(key) || text == "" {
			continue
		}
		if value != "" {
			return "", "", true
		}
		name, value = key, text
	}
	return name, value, false
}

// isOurParameter reports whether a parameter of a URL carries a token or a ticket.
func isOurParameter(name string) bool {
	return name == queryToken || name == queryTicket || name == queryDaytona
}

// withoutToken returns a query without its tokens and tickets, and everything else as it
// was written.
func withoutToken(raw string) string {
	if !strings.Contains(raw, queryToken) && !strings.Contains(raw, queryTicket) && !strings.Contains(raw, queryDaytona) && !strings.Contains(raw, "%") {
		return raw
	}
	var rest []string
	for part := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		if !isOurParameter(name) {
			rest = append(rest, part)
		}
	}
	return strings.Join(rest, "&")
}

// The names of the cookie. The first cannot be set by a page of another host.
const (
	secureCookie = "__Host-sandpit_preview"
	plainCookie  = "sandpit_preview"
)

// isOurCookie reports whether a cookie is one that sandboxes neither see nor set.
func isOurCookie(name string) bool {
	return strings.EqualFold(name, secureCookie) || strings.EqualFold(name, plainCookie) || isDaytonaCookie(name)
}

// enterByCookie lets a request in that has a cookie which opens the port.
func (a *authorizer) enterByCookie(r *http.Request, settings store.Preview) (*http.Request, pass, error) {
	for _, c := range r.Cookies() {
		if !isOurCookie(c.Name) {
			continue
		}
		in, p, err := a.admitToken(r, c.Value, grantsFor(settings)...)
		if sandpit.CodeOf(err) == sandpit.Unauthenticated {
			continue
		}
		if err == nil {
			p.byBrowser = true
			if err = a.checkPage(r); err != nil {
				p.release()
			}
		}
		return in, p, err
	}
	return r, freePass(), errPrivate()
}

// isVisit reports whether a person opens a page, rather than a program a URL.
func isVisit(r *http.Request) bool {
	if r.Method != http.MethodGet || r.Header.Get("Upgrade") != "" {
		return false
	}
	if mode := r.Header.Get("Sec-Fetch-Mode"); mode != "" {
		return mode == "navigate"
	}
	return strings.Contains(r.Header.Get("Accept"), "text/html")
}
