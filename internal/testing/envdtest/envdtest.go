// Package envdtest is a guest that lies, for tests only: it serves the protocol
// of the program inside a sandbox, and one thing in it dishonestly. Nothing that
// is shipped imports it.
//
// Each lie has a name. What a lie is not about is answered as an honest guest
// would, so that a caller comes as far as the lie.
package envdtest

import (
	"context"
	"maps"
	"net"
	"net/http"
	"path"
	"slices"
	"time"
)

// answers are handlers by what they answer: the last part of a Connect call's
// path such as "Stat", or the method and path of any other such as "GET /files".
// "*" is for all.
type answers map[string]func(*call)

// Liar is a guest that lies, as an http.Handler for tests only. It serves any
// number of connections.
type Liar struct {
	lie    answers
	honest answers
	ctx    context.Context //nolint:containedctx // ends with Close
	cancel context.CancelFunc
}

// Lies returns the names of all lies in order. They consist of lower-case
// letters, digits and hyphens, so that each can be a host name.
func Lies() []string { return slices.Sorted(maps.Keys(lies())) }

// New returns a Liar that tells the named lie. It returns nil if there is no
// such lie. The caller must Close it before the server that it is served by.
func New(lie string) *Liar {
	told, ok := lies()[lie]
	if !ok {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Liar{lie: told, honest: allHonest(), ctx: ctx, cancel: cancel}
}

func lies() map[string]answers {
	all := make(map[string]answers)
	for _, some := range []map[string]answers{
		wireLies(), errorLies(), processLies(), listLies(), followLies(), commandLies(), entryLies(), watchLies(), downloadLies(), uploadLies(), treeLies(), initLies(),
	} {
		maps.Copy(all, some)
	}
	return all
}

// Close ends every answer that is still being given. It is idempotent.
func (l *Liar) Close() { l.cancel() }

// ServeHTTP implements http.Handler.
func (l *Liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	stop := context.AfterFunc(l.ctx, cancel)
	defer stop()
	c := &call{w: w, r: r, ctx: ctx}
	for _, a := range []answers{l.lie, l.honest} {
		for _, key := range []string{path.Base(r.URL.Path), r.Method + " " + r.URL.Path, "*"} {
			if answer := a[key]; answer != nil {
				answer(c)
				return
			}
		}
	}
	http.NotFound(w, r)
}

// pace is how much of something endless there is in a second, in bytes: enough
// to be seen to grow, not enough to fill the disk of whoever tests.
const pace = 256 << 20

// call is one call that is being answered.
type call struct {
	w   http.ResponseWriter
	r   *http.Request
	ctx context.Context //nolint:containedctx // ends with the call or the Liar
}

// silence says nothing until the caller gives up.
func (c *call) silence() {
	c.drain()
	<-c.ctx.Done()
}

// drain reads the request, without which its end is not noticed.
func (c *call) drain() {
	buf := make([]byte, 64<<10)
	for c.ctx.Err() == nil {
		if _, err := c.r.Body.Read(buf); err != nil {
			return
		}
	}
}

// send sends bytes now, and reports whether anybody still listens.
func (c *call) send(b ...byte) bool {
	if c.ctx.Err() != nil {
		return false
	}
	if _, err := c.w.Write(b); err != nil {
		return false
	}
	return http.NewResponseController(c.w).Flush() == nil
}

// repeat sends b so many times at the pace, and forever if times is negative. It
// reports whether anybody still listens.
func (c *call) repeat(b []byte, times int) bool {
	start, sent := time.Now(), 0
	for ; times != 0; times-- {
		if !c.send(b...) {
			return false
		}
		sent += len(b)
		due := time.Duration(float64(sent) / pace * float64(time.Second))
		if ahead := due - time.Since(start); ahead > time.Millisecond {
			time.Sleep(ahead)
		}
	}
	return true
}

// status sends the head of an answer with headers given in pairs.
func (c *call) status(code int, headers ...string) {
	for i := 0; i+1 < len(headers); i += 2 {
		c.w.Header()[headers[i]] = []string{headers[i+1]}
	}
	c.w.WriteHeader(code)
}

// raw takes the connection over, and with it every rule of HTTP.
func (c *call) raw(say func(conn net.Conn)) {
	conn, buffered, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(c.ctx, func() { _ = conn.Close() })
	defer stop()
	size := max(0, c.r.ContentLength)
	_, _ = buffered.Discard(min(buffered.Reader.Buffered(), int(size)))
	say(conn)
}

// rawText answers with text as it is, and then says nothing more, or hangs up.
func rawText(text string, hangUp bool) func(*call) {
	return func(c *call) {
		c.raw(func(conn net.Conn) {
			if _, err := conn.Write([]byte(text)); err != nil || hangUp {
				return
			}
			untilClosed(conn)
		})
	}
}

// rawEndless answers with a head and then with the same bytes forever.
func rawEndless(head string, b []byte) func(*call) {
	return func(c *call) {
		c.raw(func(conn net.Conn) {
			_, err := conn.Write([]byte(head))
			for err == nil {
				_, err = conn.Write(b)
				time.Sleep(time.Duration(len(b)) * time.Second / pace)
			}
		})
	}
}

func untilClosed(conn net.Conn) {
	buf := make([]byte, 4<<10)
	for {
		if _, err := conn.Read(buf); err != nil {
			return
		}
	}
}
