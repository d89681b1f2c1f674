package preview

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
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

// authorizeViewer finds out whether a request may see a port. The request that it returns is to
// be used from there on: its context ends when the token or key does that was shown. The
// caller releases the pass.
func (g *Gateway) authorizeViewer(w http.ResponseWriter, r *http.Request, t target) (*http.Request, pass, error) {
	if t.label != "" {
		return g.enterByLabel(r, t)
	}
	if known, r, p, err := g.enterAsE2B(r, t); known {
		return r, p, err
	}
	known := errPrivate()
	if t.mode == byHeader {
		admitted, err := g.o.Admit(w, withoutUser(r, t))
		if err != nil && sandpit.CodeOf(err) != sandpit.Unauthenticated {
			return r, freePass(), err // the wrong name, a page of another site, too often
		}
		r, known = r.WithContext(admitted.Context()), err
	}
	said := g.previewOf(t.id, t.port)
	if isPublic(said, t.rules) {
		return r, freePass(), nil
	}
	if secret, shown := shownToken(r.Header, t.port); shown {
		return g.admitToken(r, secret, grantsFor(said)...)
	}
	switch {
	case t.mode == byHeader && known == nil:
		return g.enterByKey(r, t)
	case t.mode == byHeader || t.port == guestPort:
		return r, freePass(), known
	}
	if in, p, shown, err := g.enterByURL(r, said); shown {
		return in, p, err
	}
	if in, p, shown, err := g.enterByBearer(r, t); shown {
		return in, p, err
	}
	return g.enterByCookie(r, said)
}

// enterByBearer admits a request to a host name of a port that has an API key of the sandbox's owner
// in the header Authorization. Other values of the header are for the program at the port, which
// never sees API keys.
func (g *Gateway) enterByBearer(r *http.Request, t target) (in *http.Request, p pass, shown bool, err error) {
	scheme, secret, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if secret = strings.TrimSpace(secret); !strings.EqualFold(scheme, "Bearer") || !api.IsKey(secret) {
		return r, freePass(), false, nil
	}
	key, err := g.o.Keys.Check(r.Context(), secret)
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		err = errPrivate()
	}
	if err != nil {
		return r, freePass(), true, err
	}
	r = r.WithContext(api.WithPrincipal(r.Context(), api.Principal{Owner: key.Owner, Admin: key.Admin, KeyID: key.ID}))
	in, p, err = g.enterByKey(r, t)
	if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.Gone {
		err = errPrivate() // whether the sandbox exists or not
	}
	return in, p, true, err
}

// grantsFor are what a token in a header may be for.
func grantsFor(said store.Preview) []token.Grant {
	if said.Port == guestPort {
		return []token.Grant{token.Guest(said.Sandbox)}
	}
	grants := []token.Grant{previewOf(said), token.Traffic(said.Sandbox)}
	if said.Port == toolboxPort {
		grants = append(grants, token.Guest(said.Sandbox))
	}
	return grants
}

func previewOf(said store.Preview) token.Grant {
	return token.Preview(said.Sandbox, said.Port, said.Epoch)
}

// admitToken lets a request in that shows a token for one of some grants.
func (g *Gateway) admitToken(r *http.Request, secret string, grants ...token.Grant) (*http.Request, pass, error) {
	return enterBy(r, func() (*token.Admission, error) { return g.o.Tokens.Admit(r.Context(), secret, grants...) })
}

// enterBy lets a request in for which admit returns an admission.
func enterBy(r *http.Request, admit func() (*token.Admission, error)) (*http.Request, pass, error) {
	a, err := admit()
	if sandpit.CodeOf(err) == sandpit.Unauthenticated {
		err = errPrivate()
	}
	if err != nil {
		return r, freePass(), err
	}
	return r.WithContext(a.Context()), pass{until: a.Expires, release: a.Release}, nil
}

// enterByKey lets a request in whose API key was looked at.
func (g *Gateway) enterByKey(r *http.Request, t target) (*http.Request, pass, error) {
	if _, err := api.Find(r.Context(), g.o.Manager, t.id); err != nil {
		return r, freePass(), err
	}
	p, err := api.PrincipalOf(r.Context())
	if err != nil {
		return r, freePass(), err
	}
	ctx, release, err := g.o.Keys.Attach(r.Context(), p.KeyID)
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
func (g *Gateway) enterByURL(r *http.Request, said store.Preview) (in *http.Request, p pass, shown bool, err error) {
	name, value, several := queryValue(r.URL.RawQuery)
	switch {
	case value == "" && !several:
		return r, freePass(), false, nil
	case several, name == queryTicket && r.Method != http.MethodGet:
		return r, freePass(), true, errPrivate()
	case name == queryTicket:
		if value, err = g.exchangeTicket(r.Context(), value, said); err != nil {
			return r, freePass(), true, err
		}
	}
	grants := []token.Grant{previewOf(said)}
	if name == queryDaytona {
		grants = grantsFor(said)
	}
	in, p, err = g.admitToken(r, value, grants...)
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
func (g *Gateway) enterByCookie(r *http.Request, said store.Preview) (*http.Request, pass, error) {
	for _, c := range r.Cookies() {
		if !isOurCookie(c.Name) {
			continue
		}
		in, p, err := g.admitToken(r, c.Value, grantsFor(said)...)
		if sandpit.CodeOf(err) == sandpit.Unauthenticated {
			continue
		}
		if err == nil {
			p.byBrowser = true
			if err = g.checkPage(r); err != nil {
				p.release()
			}
		}
		return in, p, err
	}
	return r, freePass(), errPrivate()
}

// setTokenCookie gives a browser the token as a cookie, for this port only.
func (g *Gateway) setTokenCookie(w http.ResponseWriter, r *http.Request, t target, p pass) {
	c := &http.Cookie{ //nolint:gosec // it is as secure as the connection is
		Name: plainCookie, Value: p.fresh, Path: t.prefix + "/", Expires: p.until,
		HttpOnly: true, Secure: g.isEncrypted(r, t), SameSite: http.SameSiteLaxMode,
	}
	if c.Secure && t.mode == byHost {
		c.Name = secureCookie
	}
	http.SetCookie(w, c)
}

// isEncrypted reports whether the viewer's connection is encrypted, here or by a trusted
// proxy.
func (g *Gateway) isEncrypted(r *http.Request, t target) bool {
	places := g.o.Places()
	return r.TLS != nil || t.mode == byHost && places.Scheme == "https" || t.mode == byPath && strings.HasPrefix(places.Paths, "https:")
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
