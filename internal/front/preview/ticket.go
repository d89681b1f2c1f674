package preview

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"maps"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// The times that a ticket may be good for, and how many of one sandbox may wait.
const (
	defaultTicketLife = 30 * time.Second
	maxTicketLife     = 5 * time.Minute
	maxTickets        = 100
)

// The form of a ticket: a prefix that scanners of secrets know, and random bytes.
const (
	ticketPrefix = "spt_"
	ticketBytes  = 32
)

// tickets are those that were given out and not used. Only this memory knows them, and
// only by their hashes: none outlives its server. All methods may be called concurrently.
type tickets struct {
	mu   sync.Mutex
	open map[[sha256.Size]byte]ticket
}

// ticket is what one opens, and until when.
type ticket struct {
	token.Grant

	epoch   int64 // of the sandbox's tokens
	holder  token.Holder
	expires time.Time
	life    time.Duration // of what it is exchanged for
}

// addTicket returns the text of a new ticket. Exhausted: the sandbox has too many.
func (t *tickets) addTicket(what ticket, now time.Time) (string, error) {
	var raw [ticketBytes]byte
	_, _ = rand.Read(raw[:]) // never fails: crypto/rand ends the program instead
	text := ticketPrefix + base64.RawURLEncoding.EncodeToString(raw[:])
	t.mu.Lock()
	defer t.mu.Unlock()
	count := 0
	maps.DeleteFunc(t.open, func(_ [sha256.Size]byte, old ticket) bool {
		ended := !now.Before(old.expires)
		if !ended && old.Sandbox == what.Sandbox {
			count++
		}
		return ended
	})
	if count >= maxTickets {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "ticket limit reached: sandbox %s has %d unused tickets", what.Sandbox, count),
			"a ticket is for one browser; wait until they expire, or ask for a URL")
	}
	if t.open == nil {
		t.open = make(map[[sha256.Size]byte]ticket)
	}
	t.open[sha256.Sum256([]byte(text))] = what
	return text, nil
}

// takeTicket removes and returns a ticket for g at an epoch of the sandbox's tokens: only one
// of several concurrent requests gets it. A ticket for something else is not removed.
func (t *tickets) takeTicket(text string, g token.Grant, epoch int64, now time.Time) (found ticket, ok bool) {
	sum := sha256.Sum256([]byte(text))
	t.mu.Lock()
	defer t.mu.Unlock()
	found, ok = t.open[sum]
	if !ok || found.Grant != g || found.epoch != epoch || !now.Before(found.expires) {
		return ticket{}, false
	}
	delete(t.open, sum)
	return found, true
}

// exchangeTicket takes a ticket for a port, and returns a token instead. Unauthenticated: the
// ticket is not valid, or the API key that asked for it has ended.
func (a *authorizer) exchangeTicket(ctx context.Context, text string, settings store.Preview) (string, error) {
	now := a.clock.Now()
	found, ok := a.tickets.takeTicket(text, grantOf(settings), a.tokens.Epoch(settings.Sandbox), now)
	if !ok {
		return "", errPrivate()
	}
	until := now.Add(found.life).Truncate(time.Second)
	secret, err := a.tokens.Issue(ctx, found.Grant, found.holder, until, "opened with a ticket")
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return "", errPrivate()
	}
	return secret, err
}

// Ticket returns the URL of a port for a browser, with a single-use ticket unless the port is
// public. The ticket is exchanged for a cookie of that port that is valid for session. The
// default life of a ticket is 30 seconds, the default session an hour.
//
// NotFound, Gone: the sandbox. Invalid: the port, a life of more than 5 minutes, or a
// session of more than 30 days. PermissionDenied: the guest's own port. Exhausted: 100
// tickets of the sandbox wait.
func (g *Gateway) Ticket(ctx context.Context, id sandpit.ID, port int, life, session time.Duration) (wire.PreviewTicket, error) {
	u, err := g.newTicket(ctx, id, port, life, session)
	g.reportEvent(ctx, "give a preview ticket", id, port, err)
	return u, err
}

func (g *Gateway) newTicket(ctx context.Context, id sandpit.ID, port int, life, session time.Duration) (wire.PreviewTicket, error) {
	if err := g.checkAccess(ctx, id, port); err != nil {
		return wire.PreviewTicket{}, err
	}
	switch {
	case life < 0 || life > maxTicketLife:
		return wire.PreviewTicket{}, sandpit.Errorf(sandpit.Invalid, "a ticket that is good for %v: want at most %v", life, maxTicketLife)
	case session < 0 || session > maxLife:
		return wire.PreviewTicket{}, sandpit.Errorf(sandpit.Invalid, "a session of %v: want at most %v", session, maxLife)
	}
	if life == 0 {
		life = defaultTicketLife
	}
	if session == 0 {
		session = defaultLife
	}
	settings := g.ports.find(id, port)
	out := wire.PreviewTicket{Port: port, Public: settings.Public}
	query := ""
	if !settings.Public {
		holder, err := holderOf(ctx)
		if err != nil {
			return wire.PreviewTicket{}, err
		}
		now := g.o.Clock.Now()
		text, err := g.access.tickets.addTicket(ticket{grantOf(settings), g.o.Tokens.Epoch(id), holder, now.Add(life), session}, now)
		if err != nil {
			return wire.PreviewTicket{}, err
		}
		out.Ticket, out.ExpiresAt = text, now.Add(life).UTC()
		query = "?" + queryTicket + "=" + text
	}
	out.URL, out.PathURL = g.previewAddresses(id, port, query)
	return out, nil
}
