package preview_test

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// ticket asks for a ticket with the usual times.
func (r *rig) ticket(id sandpit.ID, port int) wire.PreviewTicket {
	r.Helper()
	u, err := r.gateway.Ticket(r.as(alice), id, port, 0, 0)
	if err != nil {
		r.Fatal(err)
	}
	return u
}

// TestTicket opens URLs with tickets as a browser does, again, and as a program.
func TestTicket(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	r.both(t, func(t *testing.T, c *http.Client) { //nolint:thelper // it is the test
		for _, byPath := range []bool{false, true} {
			u := r.ticket(id, port)
			target := u.URL
			if byPath {
				target = u.PathURL
			}
			if left := u.ExpiresAt.Sub(r.clock.Now()); left > 30*time.Second || left < 10*time.Second || !strings.Contains(target, "="+u.Ticket) {
				t.Errorf("%+v ends in %v", u, left)
			}
			visit := get(t, c, target+"&a=%20b", "Sec-Fetch-Mode", "navigate")
			if at := visit.header.Get("Location"); visit.status != http.StatusSeeOther || at != parse(t, target).Path+"?a=%20b" || visit.header.Get("Referrer-Policy") != "strict-origin-when-cross-origin" {
				t.Errorf("%d %v", visit.status, visit.header)
			}
			cookie := visit.cookieOf(t)
			left := cookie.Expires.Sub(r.clock.Now())
			if !cookie.HttpOnly || cookie.Domain != "" || cookie.Path != parse(t, target).Path || strings.Contains(cookie.Value, u.Ticket) || left > time.Hour || left < 50*time.Minute {
				t.Errorf("cookie: %+v", cookie)
			}
			clean, _, _ := strings.Cut(target, "?")
			get(t, c, clean, "Cookie", cookie.Name+"="+cookie.Value, "Sec-Fetch-Site", "none").want(t, http.StatusOK, "GET / ")
			get(t, c, target, "Sec-Fetch-Mode", "navigate").want(t, http.StatusUnauthorized, "private")
			get(t, c, target, "Cookie", cookie.Name+"="+cookie.Value).want(t, http.StatusUnauthorized, "private")
		}
		// A program is answered at once, also once only, and the ticket goes no further.
		u := r.ticket(id, port)
		got := get(t, c, u.URL+"&a=1", "Referer", "http://x/", "Authorization", "Bearer "+u.Ticket)
		if got.want(t, http.StatusOK, "GET /?a=1 "); strings.Contains(got.body, u.Ticket) {
			t.Errorf("the sandbox sees the ticket:\n%s", got.body)
		}
		get(t, c, u.URL).want(t, http.StatusUnauthorized, "private")
	})
}

// TestTicketElsewhere shows tickets where they open nothing; none of that uses one up.
func TestTicketElsewhere(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port, other := app(t, echo), app(t, echo)
	id, second := r.box(), r.box()
	u := r.ticket(id, port)
	query := "/?sandpit_ticket=" + u.Ticket
	c := r.client(false)
	for name, req := range map[string]*http.Request{
		"other port":      request(t, http.MethodGet, r.hostURL(id, other)+query, nil),
		"other sandbox":   request(t, http.MethodGet, r.hostURL(second, port)+query, nil),
		"no sandbox":      request(t, http.MethodGet, r.hostURL(sandpit.NewID(), port)+query, nil),
		"guest":           request(t, http.MethodGet, r.hostURL(id, preview.GuestPort)+query, nil),
		"as a token":      request(t, http.MethodGet, r.hostURL(id, port)+"/?sandpit_token="+u.Ticket, nil),
		"as a header":     request(t, http.MethodGet, r.hostURL(id, port), nil, "Sandpit-Preview-Token", u.Ticket),
		"as a cookie":     request(t, http.MethodGet, r.hostURL(id, port), nil, "Cookie", "sandpit_preview="+u.Ticket),
		"twice":           request(t, http.MethodGet, r.hostURL(id, port)+query+"&sandpit_ticket="+u.Ticket, nil),
		"with a token":    request(t, http.MethodGet, r.hostURL(id, port)+query+"&sandpit_token="+r.token(id, port), nil),
		"shortened":       request(t, http.MethodGet, r.hostURL(id, port)+query[:len(query)-1], nil),
		"a token as one":  request(t, http.MethodGet, r.hostURL(id, port)+"/?sandpit_ticket="+r.token(id, port), nil),
		"post":            request(t, http.MethodPost, r.hostURL(id, port)+query, strings.NewReader("x")),
		"head":            request(t, http.MethodHead, r.hostURL(id, port)+query, nil),
		"at the API":      request(t, http.MethodGet, "http://"+r.main+"/v1/sandboxes"+query[1:], nil),
		"at the API, too": request(t, http.MethodGet, "http://"+r.main+"/v1/sandboxes", nil, "X-Api-Key", u.Ticket),
		"by headers":      request(t, http.MethodGet, "http://"+r.main+query, nil, "E2b-Sandbox-Id", string(id), "E2b-Sandbox-Port", strconv.Itoa(port)),
	} {
		if got := send(t, c, req); got.status != http.StatusUnauthorized {
			t.Errorf("%s: status %d: %s", name, got.status, got.body)
		}
	}
	get(t, c, u.URL).want(t, http.StatusOK, "GET / ")
}

// TestTicketEnds lets tickets expire, takes them back, and restarts the gateway.
func TestTicketEnds(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	c := r.client(false)
	late := r.ticket(id, port)
	long, err := r.gateway.Ticket(r.as(alice), id, port, 5*time.Minute, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	r.clock.advance(31 * time.Second)
	get(t, c, late.URL).want(t, http.StatusUnauthorized, "private")
	cookie := get(t, c, long.URL, "Sec-Fetch-Mode", "navigate").cookieOf(t)
	pair := cookie.Name + "=" + cookie.Value
	get(t, c, r.hostURL(id, port), "Cookie", pair, "Sec-Fetch-Site", "none").want(t, http.StatusOK, "")
	r.clock.advance(61 * time.Second)
	get(t, c, r.hostURL(id, port), "Cookie", pair, "Sec-Fetch-Site", "none").want(t, http.StatusUnauthorized, "private")

	back := r.ticket(id, port)
	if err := r.gateway.Revoke(r.as(alice), id, port); err != nil {
		t.Fatal(err)
	}
	get(t, c, back.URL).want(t, http.StatusUnauthorized, "private")

	lost := r.ticket(id, port)
	address, stop := listen(t, r.reopen().Handler(http.NotFoundHandler()))
	defer stop()
	get(t, c, strings.Replace(lost.URL, ":"+portOf(r.main), ":"+portOf(address), 1)).want(t, http.StatusUnauthorized, "private")

	r.public(id, port)
	if u := r.ticket(id, port); u.Ticket != "" || strings.Contains(u.URL, "?") || !u.Public || !u.ExpiresAt.IsZero() {
		t.Errorf("of a public port: %+v", u)
	}
}

// TestTicketRace has many use one ticket at a time: one of them is let in.
func TestTicketRace(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	clients := make([]*http.Client, 8)
	for i := range clients {
		clients[i] = r.client(i%2 == 0)
	}
	for range 20 {
		u := r.ticket(id, port)
		var in, out atomic.Int32
		var group sync.WaitGroup
		for _, c := range clients {
			group.Go(func() {
				res, err := c.Do(request(t, http.MethodGet, u.URL, nil, "Sec-Fetch-Mode", "navigate"))
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				switch res.StatusCode {
				case http.StatusSeeOther:
					in.Add(1)
				case http.StatusUnauthorized:
					out.Add(1)
				}
			})
		}
		if group.Wait(); in.Load() != 1 || out.Load() != int32(len(clients)-1) {
			t.Fatalf("%d were let in and %d refused of %d", in.Load(), out.Load(), len(clients))
		}
	}
}

// TestTicketAsked asks for what there is not, over the API, too, and too often.
func TestTicketAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.box()
	for name, tc := range map[string]struct {
		owner         string
		port          int
		life, session time.Duration
		want          sandpit.Code
	}{
		"another's":    {bob, 80, 0, 0, sandpit.NotFound},
		"guest's port": {alice, preview.GuestPort, 0, 0, sandpit.PermissionDenied},
		"port":         {alice, 70000, 0, 0, sandpit.Invalid},
		"long":         {alice, 80, 301 * time.Second, 0, sandpit.Invalid},
		"negative":     {alice, 80, -1, 0, sandpit.Invalid},
		"session":      {alice, 80, 0, 31 * 24 * time.Hour, sandpit.Invalid},
		"negative one": {alice, 80, 0, -1, sandpit.Invalid},
	} {
		if _, err := r.gateway.Ticket(r.as(tc.owner), id, tc.port, tc.life, tc.session); sandpit.CodeOf(err) != tc.want {
			t.Errorf("%s: %v, want %s", name, err, tc.want)
		}
	}
	at := "http://" + r.main + "/v1/sandboxes/" + string(id) + "/ports/80/ticket"
	c := r.client(false)
	ask := func(owner, body string) reply {
		return send(t, c, request(t, http.MethodPost, at, strings.NewReader(body), "X-Api-Key", r.keys[owner], "Content-Type", "application/json"))
	}
	ask(alice, `{"expires_seconds": 10}`).want(t, http.StatusCreated, `"ticket":"spt_`)
	ask(alice, `{"expires_seconds": 1e300}`).want(t, http.StatusBadRequest, "")
	ask(bob, `{}`).want(t, http.StatusNotFound, "")
	get(t, c, at).want(t, http.StatusUnauthorized, "")
	for range 99 {
		r.ticket(id, 80)
	}
	ask(alice, `{}`).want(t, http.StatusTooManyRequests, "100 unused tickets")
	if _, err := r.gateway.Ticket(r.as(alice), r.box(), 80, 0, 0); err != nil {
		t.Errorf("of another sandbox: %v", err)
	}
	r.clock.advance(time.Minute)
	r.ticket(id, 80)
}
