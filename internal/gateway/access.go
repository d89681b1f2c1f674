package gateway

import (
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api"
)

// errPrivate is the same for every port that nobody may see who shows nothing, also for
// those that there are not.
func errPrivate() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unauthenticated, "this preview is private"),
		"open the URL that sandpit url prints")
}

// pass is how somebody got in.
type pass struct {
	// fresh is a token that came with the URL, or that a ticket was exchanged for, and
	// until is when it ends.
	fresh string
	until time.Time
}

// enter finds out whether a request may see a port. The request that it returns is to
// be used from there on.
func (g *Gateway) enter(w http.ResponseWriter, r *http.Request, t target) (*http.Request, pass, error) {
	if known, err := g.enterAsE2B(r, t); known {
		return r, pass{}, err
	}
	known := errPrivate()
	if t.mode == byHeader {
		admitted, err := g.o.Admit(w, withoutUser(r, t))
		if err != nil && sandpit.CodeOf(err) != sandpit.Unauthenticated {
			return r, pass{}, err // the wrong name, a page of another site, too often
		}
		r, known = r.WithContext(admitted.Context()), err
	}
	said := g.look(t.id, t.port)
	if said.Public && t.port != guestPort {
		return r, pass{}, nil
	}
	sealed := grant{t.id, t.port, said.Epoch}
	now := g.o.Clock.Now()
	if token, shown := shownToken(r.Header, t.port); shown {
		_, ok := g.signer.check(token, sealed, now)
		if !ok && t.port != guestPort {
			_, ok = g.signer.check(token, grant{id: t.id, port: anyPort}, now)
		}
		if !ok {
			return r, pass{}, errPrivate()
		}
		return r, pass{}, nil
	}
	switch {
	case t.mode == byHeader && known == nil:
		_, err := api.Find(r.Context(), g.o.Manager, t.id)
		return r, pass{}, err
	case t.mode == byHeader || t.port == guestPort:
		return r, pass{}, known
	}
	if p, shown, ok := g.shownInURL(r, sealed, now); shown {
		if !ok {
			return r, pass{}, errPrivate()
		}
		return r, p, nil
	}
	if g.hasCookie(r, sealed, now) {
		return r, pass{}, checkPage(r)
	}
	return r, pass{}, errPrivate()
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
	names := []string{headerToken, headerTraffic}
	if port == guestPort {
		names = append(names, headerGuest)
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

// shownInURL finds out what a URL opens. One with several tokens or tickets opens nothing,
// and no ticket is used up by it, nor by those who look at links without opening them.
func (g *Gateway) shownInURL(r *http.Request, sealed grant, now time.Time) (p pass, shown, ok bool) {
	name, value, several := queryValue(r.URL.RawQuery)
	switch {
	case value == "" && !several:
		return pass{}, false, false
	case several:
		return pass{}, true, false
	case name == queryToken:
		p.fresh = value
		p.until, ok = g.signer.check(value, sealed, now)
		return p, true, ok
	case r.Method != http.MethodGet:
		return pass{}, true, false
	}
	life, ok := g.tickets.take(value, sealed, now)
	if ok {
		p.until = now.Add(life).Truncate(time.Second)
		p.fresh = g.signer.sign(sealed, p.until)
	}
	return p, true, ok
}

// queryValue returns the token or ticket in a query, and whether there are several.
func queryValue(raw string) (name, value string, several bool) {
	for part := range strings.SplitSeq(raw, "&") {
		key, text, _ := strings.Cut(part, "=")
		if key != queryToken && key != queryTicket || text == "" {
			continue
		}
		if value != "" {
			return "", "", true
		}
		name, value = key, text
	}
	return name, value, false
}

// withoutToken returns a query without its tokens and tickets, and everything else as it
// was written.
func withoutToken(raw string) string {
	if !strings.Contains(raw, queryToken) && !strings.Contains(raw, queryTicket) && !strings.Contains(raw, "%") {
		return raw
	}
	var rest []string
	for part := range strings.SplitSeq(raw, "&") {
		name, _, _ := strings.Cut(part, "=")
		if plain, err := url.QueryUnescape(name); err == nil {
			name = plain
		}
		if name != queryToken && name != queryTicket {
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
	return strings.EqualFold(name, secureCookie) || strings.EqualFold(name, plainCookie)
}

// hasCookie reports whether a request has a cookie that opens a port.
func (g *Gateway) hasCookie(r *http.Request, sealed grant, now time.Time) bool {
	for _, c := range r.Cookies() {
		if !isOurCookie(c.Name) {
			continue
		}
		if _, ok := g.signer.check(c.Value, sealed, now); ok {
			return true
		}
	}
	return false
}

// keep gives a browser the token as a cookie, for this port only.
func (g *Gateway) keep(w http.ResponseWriter, r *http.Request, t target, p pass) {
	c := &http.Cookie{ //nolint:gosec // it is as secure as the connection is
		Name: plainCookie, Value: p.fresh, Path: t.prefix + "/", Expires: p.until,
		HttpOnly: true, Secure: g.encrypted(r, t), SameSite: http.SameSiteLaxMode,
	}
	if c.Secure && t.mode == byHost {
		c.Name = secureCookie
	}
	http.SetCookie(w, c)
}

// encrypted reports whether the viewer's connection is, also when somebody before us
// does that.
func (g *Gateway) encrypted(r *http.Request, t target) bool {
	places := g.o.Places()
	return r.TLS != nil || t.mode == byHost && places.Scheme == "https" || t.mode == byPath && strings.HasPrefix(places.Paths, "https:")
}

// checkPage refuses what a page of somebody else's makes a browser do that has the
// cookie. Only a person who follows a link may come from elsewhere.
func checkPage(r *http.Request) error {
	site, origin := r.Header.Get("Sec-Fetch-Site"), r.Header.Get("Origin")
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case site == "same-origin" || site == "none":
		return nil
	case site != "":
		if read && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
			return nil
		}
	case origin == "":
		return nil // not a page
	default:
		if u, err := url.Parse(origin); err == nil && strings.EqualFold(u.Host, r.Host) {
			return nil
		}
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "a page of another site may not use this preview"),
		"make the port public, or send a token in the header "+headerToken)
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
